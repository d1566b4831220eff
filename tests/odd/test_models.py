"""Models that are not the plain case: each is handled with the right result, or refused with the way out."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

import cosep
from cosep.errors import ConfigError, ModelError, RecoveryError, TraceError
from tests.odd.small import (
    CLASSES,
    Net,
    batches,
    images,
    kept,
    masked,
    plain_cut,
    prune,
    quietly,
    same,
    same_weights,
    settings,
    trained,
)

X = images(4)[0]


def groups_of(model):
    return {group.name: group for group in cosep.find_groups(model, X[:1])}


def same_result_as(model, ordinary, **options):
    """Prune both; the odd one must lose the same channels and end with the same function as the ordinary one."""
    odd, usual = prune(model, **options), prune(ordinary, **options)
    assert kept(odd, "a") == kept(usual, "a")
    assert same(odd.model, usual.model)
    return odd


# --- modules and weights that are shared ---------------------------------------------------------------------------


class SharedConv(Net):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.b(F.relu(self.bn(self.a(x)))))
        return self.f(self.c(F.relu(self.c(x))).mean((2, 3)))


class SharedNorm(Net):
    """One BatchNorm behind two convolutions."""

    def __init__(self):
        super().__init__()
        self.a2 = nn.Conv2d(3, 8, 3)
        self.c = nn.Conv2d(6, 6, 3)
        self.d = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        y = F.relu(self.b(F.relu(self.bn(self.a(x))) + F.relu(self.bn(self.a2(x)))))
        return self.f(self.d(F.relu(self.c(y))).mean((2, 3)))


class SharedReLU(Net):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.f(self.relu(self.b(self.relu(self.bn(self.a(x))))).mean((2, 3)))


def test_a_layer_that_runs_twice_stays_whole_and_the_others_are_cut():
    model = SharedConv()
    assert groups_of(model)["b"].why_not == "module c is called several times"
    result = prune(model, config=plain_cut())
    assert len(kept(result, "a")) == 4
    assert same(result.model, masked(model, result, {"b": "a"}))


def test_a_shared_batchnorm_keeps_its_convolutions_whole():
    model = SharedNorm()
    why = {name: group.why_not for name, group in groups_of(model).items()}
    assert "bn is called several times" in why["a"] or "addition" in why["a"]
    result = prune(model, group="c", config=plain_cut(surgery={"scope": "all"}))
    assert result.model.bn.num_features == 8
    assert same(result.model, masked(model, result, {"d": "c"}))


def test_a_shared_activation_changes_nothing():
    same_result_as(SharedReLU(), Net())


def test_a_module_under_two_names_stays_one_module():
    model = Net()
    model.also = model.a
    result = same_result_as(model, Net())
    assert result.model.also is result.model.a


class Tied(Net):
    """b and c share a weight, as do the biases of a and b, whose inputs are not as many."""

    def __init__(self, kind=nn.Conv2d):
        super().__init__()
        self.b = nn.Conv2d(8, 8, 1)
        self.c = kind(8, 8, 1)
        self.d = nn.Conv2d(8, 6, 1)
        self.c.weight = self.b.weight
        self.b.bias = self.a.bias

    def forward(self, x):
        x = F.relu(self.bn(self.a(x)))
        return self.f(self.d(F.relu(self.c(F.relu(self.b(x))))).mean((2, 3)))


def test_tied_weights_are_cut_together_and_stay_tied(tmp_path):
    model = Tied()
    assert groups_of(model)["a"].why_not == "tied by weights that layers share"
    result = prune(model, config=plain_cut(surgery={"scope": "all"}))
    cut = result.model
    assert cut.b.weight is cut.c.weight
    assert cut.a.bias is cut.b.bias
    stay = list(kept(result, "a"))
    assert torch.equal(cut.b.weight, model.b.weight[stay][:, stay])
    assert same(cut, masked(model, result, {"b": "a", "c": "a", "d": "a"}))
    result.save(tmp_path / "run")
    loaded = cosep.load(tmp_path / "run", Tied)
    assert loaded.b.weight is loaded.c.weight
    assert same_weights(loaded, cut)


def test_weights_tied_between_layers_of_different_kinds_are_never_cut_wrongly():
    class Other(nn.Conv2d):
        pass

    model = Tied(Other)
    result = prune(model, width=None, config=plain_cut(surgery={"scope": "all"}))
    stay = {plan.group: plan.kept for plan in result.plan.groups}
    consumers = {"b": "a", "c": "b", "d": "c"}
    assert same(result.model, masked(model, result, {c: g for c, g in consumers.items() if g in stay}))


def test_two_parameters_in_one_memory_are_refused_and_told_how_to_tie():
    model = Tied()
    model.c.weight = nn.Parameter(model.b.weight.data)
    with pytest.raises(ModelError, match=r"b.weight and c.weight are two parameters in the same memory.*b.weight = a"):
        prune(model)


# --- hooks of the user's -------------------------------------------------------------------------------------------


def test_a_hook_that_changes_the_output_is_part_of_the_function_before_and_after():
    model, ordinary = Net(), Net()
    model.b.register_forward_hook(lambda module, args, output: 2 * output)
    with torch.no_grad():
        ordinary.b.weight *= 2
    with pytest.warns(UserWarning, match=r"has hooks \(on b\).*Remove those that only watch"):
        odd = prune(model)
    usual = prune(ordinary)
    assert kept(odd, "a") == kept(usual, "a")
    assert same(odd.model, usual.model)
    assert len(odd.model.b._forward_hooks) == len(model.b._forward_hooks) == 1


class Behind(Net):
    """With a BatchNorm behind the consumer, where compensation puts its constant."""

    def __init__(self):
        super().__init__()
        self.bn2 = nn.BatchNorm2d(6)
        self.eval()

    def forward(self, x):
        return self.f(F.relu(self.bn2(self.b(F.relu(self.bn(self.a(x)))))).mean((2, 3)))


def test_a_hook_between_a_convolution_and_its_batchnorm_does_not_spoil_compensation():
    model, ordinary = Behind(), Behind()
    model.b.register_forward_hook(lambda module, args, output: 0.01 * output)
    with torch.no_grad():
        ordinary.b.weight *= 0.01
    only = settings(rebuild={"reestimate_batchnorm": False})
    odd, usual = quietly(prune, model, config=only), prune(ordinary, config=only)
    x = images(60)[0]
    errors = [(r.model(x) - model(x)).square().mean() for r in (odd, usual)]
    # Without a place for the constant it may fit a little worse, but not as a constant of the wrong size would.
    assert errors[0] < 3 * errors[1]


def test_hooks_are_neither_lost_nor_doubled():
    model = Net()
    model.calls = []
    model.a.register_forward_hook(model_watcher(model))
    model.bn.register_forward_pre_hook(lambda module, args: None)
    model.b.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    result = quietly(prune, model, config=trained())
    cut = result.model
    tables = [(m.a._forward_hooks, m.bn._forward_pre_hooks, m.b._backward_hooks) for m in (model, cut)]
    assert [[len(table) for table in found] for found in tables] == [[1, 1, 1], [1, 1, 1]]
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in (cut, cut.f, model, model.f))
    assert model.calls == []  # a method of the model is bound to the copy in the copy
    cut.calls.clear()
    cut(X)
    assert cut.calls == [4]


def model_watcher(model):
    model.watch = lambda *_: None
    return Watching.watch.__get__(model)


class Watching:
    def watch(self, module, args, output):
        self.calls.append(output.shape[1])


def test_a_hook_that_knows_the_number_of_channels_keeps_them():
    model = Net()
    scale = torch.rand(8, 1, 1)
    model.a.register_forward_hook(lambda module, args, output: output * scale)
    result = quietly(prune, model, width=None)
    assert result.model.a.out_channels == 8
    assert "combined with a tensor of fixed size" in groups_of(model)["a"].why_not


def test_a_hook_on_a_gradient_is_refused_because_it_would_be_lost():
    model = Net()
    handle = model.b.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(ModelError, match=r"b.weight has a hook on its gradient.*Remove the hook before"):
        prune(model)
    handle.remove()
    prune(model)


# --- wrappers ------------------------------------------------------------------------------------------------------


def test_data_parallel_is_taken_off_and_said_so(tmp_path):
    model = nn.DataParallel(Net())
    with pytest.warns(UserWarning, match=r"wrapped in DataParallel: the network inside, `model.module`"):
        odd = prune(model)
    assert same_weights(odd.model, prune(Net()).model)
    odd.save(tmp_path / "run")
    assert same_weights(cosep.load(tmp_path / "run", Net), odd.model)
    with pytest.warns(UserWarning, match="wrapped in DataParallel"):
        assert same_weights(cosep.load(tmp_path / "run", lambda: nn.DataParallel(Net())), odd.model)


def test_distributed_data_parallel_is_taken_off(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.warns(UserWarning, match="wrapped in DistributedDataParallel"):
            odd = prune(nn.parallel.DistributedDataParallel(Net()))
    finally:
        torch.distributed.destroy_process_group()
    assert same_weights(odd.model, prune(Net()).model)


def test_a_compiled_model_is_taken_out_of_its_wrapper():
    compiled = quietly(torch.compile, Net())  # torch warns of itself
    with pytest.warns(UserWarning, match=r"wrapped in OptimizedModule: the network inside, `model._orig_mod`"):
        odd = prune(compiled)
    assert type(odd.model) is Net
    assert same_weights(odd.model, prune(Net()).model)
    in_place = Net()
    in_place.compile()
    assert same_weights(prune(in_place).model, odd.model)


def test_wrappers_inside_a_model_are_refused_with_the_place():
    model = nn.Sequential(nn.DataParallel(Net()))
    with pytest.raises(TraceError, match=r"0 is wrapped in DataParallel; give the module inside, `model.0.module`"):
        prune(model)


def test_a_scripted_model_is_refused():
    with pytest.raises(TraceError, match=r"ScriptModule.*give the nn.Module it was made from"):
        prune(quietly(torch.jit.script, Net()))


# --- precision and memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_with_the_way_out(dtype):
    with pytest.raises(ModelError, match=r"a.weight is torch.*float16, too coarse.*Prune `model.float\(\)`"):
        prune(Net().to(dtype))


def test_a_model_in_double_precision_is_pruned_like_one_in_single_and_stays_double(tmp_path):
    loader = [(x.double(), y) for x, y in batches()]
    odd, usual = prune(Net().double(), loader, config=trained()), prune(Net(), config=trained())
    assert kept(odd, "a") == kept(usual, "a")
    assert {t.dtype for t in odd.model.state_dict().values()} == {torch.float64, torch.int64}
    assert same(odd.model, usual.model.double(), images(12, seed=5)[0].double(), tolerance=1e-3)
    odd.save(tmp_path / "run")
    assert same_weights(cosep.load(tmp_path / "run", Net), odd.model)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_memory_format_stays(memory_format):
    result = prune(Net().to(memory_format=memory_format), config=trained())
    assert result.model.a.weight.is_contiguous(memory_format=memory_format)
    assert result.model.b.weight.is_contiguous(memory_format=memory_format)
    assert kept(result, "a") == kept(prune(Net(), config=trained()), "a")


def test_a_model_on_meta_is_refused():
    with pytest.raises(TraceError, match=r"a.weight is on the meta device and has no values"):
        prune(Net().to("meta"))


def test_a_lazy_model_is_refused():
    with pytest.raises(TraceError, match=r"0.weight has no shape yet \(a lazy layer\); run the model once"):
        prune(nn.Sequential(nn.LazyConv2d(8, 3), nn.Flatten(), nn.LazyLinear(CLASSES)))


def test_a_quantised_model_is_refused():
    model = Net()
    quantised = quietly(torch.ao.quantization.quantize_dynamic, model, {nn.Linear}, torch.qint8)
    with pytest.raises(TraceError, match=r"f is quantised \(Linear\).*quantise the result"):
        prune(quantised)


def test_complex_weights_are_refused_by_name():
    model = Net()
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(ModelError, match=r"phase is torch.complex64; real weights are needed"):
        prune(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(value):
    model = Net()
    with torch.no_grad():
        model.b.weight[2, 3, 0, 0] = value
    with pytest.raises(ModelError, match=r"b.weight holds (nan|inf); finite weights are needed"):
        prune(model)


def test_statistics_that_are_nan_are_refused_by_name():
    model = Net()
    model.bn.running_var[3] = torch.nan
    with pytest.raises(ModelError, match=r"the buffer bn.running_var holds nan"):
        prune(model)


def test_a_state_that_is_no_tensor_is_refused_and_told_to_become_a_buffer():
    class Extra(Net):
        def get_extra_state(self):
            return {"version": 2}

        def set_extra_state(self, state):
            pass

    with pytest.raises(ModelError, match=r"state_dict holds a dict \(_extra_state\).*Register what it is made of"):
        prune(Extra())


# --- what is frozen, and what differs in training ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gradient", "mode"])
def test_a_frozen_batchnorm_is_cut_but_never_measured_or_trained(how):
    model = Net().train()
    if how == "gradient":
        model.eval()
        model.bn.requires_grad_(False)
    else:
        model.bn.eval()
    result = prune(model, config=trained())
    stay = list(kept(result, "a"))
    assert torch.equal(result.model.bn.running_mean, model.bn.running_mean[stay])
    assert torch.equal(result.model.bn.running_var, model.bn.running_var[stay])
    assert result.model.bn.training == model.bn.training
    free = prune(Net(), config=trained())
    assert not torch.equal(free.model.bn.running_mean, Net().bn.running_mean[list(kept(free, "a"))])


def test_compensation_leaves_a_frozen_batchnorm_behind_the_consumer_alone():
    model = Behind()
    model.bn2.requires_grad_(False)
    result = prune(model)
    assert torch.equal(result.model.bn2.running_mean, model.bn2.running_mean)
    assert not torch.equal(prune(Behind()).model.bn2.running_mean, model.bn2.running_mean)


class FrozenNorm(nn.Module):
    """As torchvision's FrozenBatchNorm2d: buffers only."""

    def __init__(self, other):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(other, name).detach().clone())

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def test_a_batchnorm_made_of_buffers_is_cut_with_its_convolution():
    model = Net()
    model.bn = FrozenNorm(model.bn)
    result = prune(model, config=plain_cut())
    assert result.model.bn.weight.shape == (4,)
    assert same(result.model, masked(Net(), result, {"b": "a"}))


def test_frozen_layers_stay_frozen_and_are_not_trained():
    model = Net()
    model.f.requires_grad_(False)
    result = prune(model, config=trained())
    assert {n: p.requires_grad for n, p in result.model.named_parameters()} == {
        n: p.requires_grad for n, p in model.named_parameters()
    }
    assert torch.equal(result.model.f.weight, model.f.weight)


def test_a_model_without_any_gradient_is_refused_before_any_work_if_it_is_to_be_trained():
    model = Net().requires_grad_(False)
    started = []
    callbacks = cosep.Callbacks(on_stage=lambda group, stage: started.append(stage))
    with pytest.raises(RecoveryError, match=r"no parameter of the model requires a gradient.*requires_grad_\(True\)"):
        prune(model, config=trained(), callbacks=callbacks)
    assert not started
    result = prune(model)
    assert not any(p.requires_grad for p in result.model.parameters())


def test_the_training_mode_of_every_module_stays():
    model = Net().train()
    model.b.eval()
    flags = [m.training for m in model.modules()]
    result = prune(model, config=trained())
    assert [m.training for m in model.modules()] == flags
    assert [m.training for m in result.model.modules()] == flags


class Dropping(Net):
    def __init__(self, training_only=True):
        super().__init__()
        self.drop, self.drop2, self.training_only = nn.Dropout(0.5), nn.Dropout2d(0.5), training_only

    def forward(self, x):
        x = self.drop2(F.relu(self.bn(self.a(x))))
        if self.training and torch.rand(()) < 0.5:  # stochastic depth
            x = x * 1.5
        x = F.relu(self.b(x))
        if not self.training_only:
            x = F.dropout(x, 0.5)  # training=True is torch's default
        return self.f(self.drop(x).mean((2, 3)))


def test_dropout_and_stochastic_depth_are_off_but_in_recovery():
    same_result_as(Dropping().train(), Net().train())
    torch.manual_seed(1)
    assert prune(Dropping().train(), config=trained()).report.recovery.outcome == "done"


def test_a_model_that_is_random_in_evaluation_mode_is_left_whole_and_told_why():
    result = prune(Dropping(training_only=False), config=plain_cut())
    assert kept(result, "a") == tuple(range(8))
    reasons = [plan.reason for plan in result.plan.groups]
    assert any("random in evaluation mode" in reason for reason in reasons)


def test_prune_works_inside_no_grad_and_is_refused_in_inference_mode():
    with torch.no_grad():
        odd = prune(Net(), config=trained())
    assert same_weights(odd.model, prune(Net(), config=trained()).model)
    with torch.inference_mode(), pytest.raises(ModelError, match=r"inference_mode is on.*outside of it"):
        prune(Net())


# --- structure -----------------------------------------------------------------------------------------------------


class Nested(Net):
    """The same network in nests of containers; convolutions without bias are in Net."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Sequential(self.a, self.bn), nn.ReLU())])
        self.heads = nn.ModuleDict({"main": nn.Sequential(self.b, nn.Sequential(nn.ReLU()))})
        del self.a, self.bn, self.b

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.f(self.heads["main"](x).mean((2, 3)))


def test_nests_of_containers_change_nothing(tmp_path):
    odd, usual = prune(Nested(), group="blocks.0.0.0"), prune(Net())
    assert kept(odd, "blocks.0.0.0") == kept(usual, "a")
    assert same(odd.model, usual.model)
    odd.save(tmp_path / "run")
    assert same_weights(cosep.load(tmp_path / "run", Nested), odd.model)


class Branching(Net):
    """Which layer reads a's channels is decided by the data."""

    def __init__(self, threshold):
        super().__init__()
        self.other = nn.Conv2d(8, 6, 3)
        self.threshold = threshold

    def forward(self, x):
        y = F.relu(self.bn(self.a(x)))
        y = self.b(y) if x.mean() < self.threshold else self.other(y)
        return self.f(F.relu(y).mean((2, 3)))


def test_a_branch_that_the_data_take_is_refused():
    loader = batches()
    loader[2] = (loader[2][0] + 10, loader[2][1])
    with pytest.raises(ModelError, match=r"the input decides which layers.*batch 2 runs other and batch 0 runs b"):
        prune(Branching(5.0), loader)


def test_a_branch_by_the_size_of_the_batch_is_refused_before_any_work():
    class BySize(Branching):
        def forward(self, x):
            y = F.relu(self.bn(self.a(x)))
            return self.f((self.b(y) if len(x) == 1 else self.other(y)).mean((2, 3)))

    with pytest.raises(ModelError, match=r"first batch of calibration runs other and the example input runs b.*where"):
        prune(BySize(0.0))


def test_a_branch_that_only_other_data_take_is_found_by_the_proof():
    loader = [(x + 10, y) for x, y in batches()]  # random input takes the other branch
    result = prune(Branching(5.0), loader, config=plain_cut())
    assert kept(result, "a") == tuple(range(8))
    assert "did not equal its masked copy" in result.plan.groups[0].reason


def test_a_branch_without_layers_of_its_own_is_found_by_the_proof():
    class Flipping(Net):
        def forward(self, x):
            y = F.relu(self.bn(self.a(x)))
            y = y.flip(1) if x.mean() < 5 else y
            return self.f(F.relu(self.b(y)).mean((2, 3)))

    loader = [(x + 10, y) for x, y in batches()]
    assert kept(prune(Flipping(), loader, config=plain_cut()), "a") == tuple(range(8))


class Functional(Net):
    """b as a function of a bare parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(self.b.weight.detach().clone())
        self.c, self.b = nn.Conv2d(6, 6, 1), None

    def forward(self, x):
        x = F.relu(self.bn(self.a(x)))
        return self.f(self.c(F.relu(F.conv2d(x, self.weight))).mean((2, 3)))


def test_a_convolution_by_function_keeps_its_channels_and_is_named():
    assert "used by a convolution in the model whose weight is not a plain" in groups_of(Functional())["a"].why_not
    model = Functional()
    result = prune(model, group="c", width=3, config=plain_cut())
    assert result.model.a.out_channels == 8
    assert same(result.model, masked(model, result, {"f": "c"}))


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


class OwnScale(nn.Module):
    """A number for each channel, and a width written down under a name that we know, or one that we do not."""

    def __init__(self, name):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))
        self.name = name
        setattr(self, name, 8)

    def forward(self, x):
        return x.view(-1, getattr(self, self.name), *x.shape[2:]) * self.scale.view(-1, 1, 1)


class Custom(Net):
    def __init__(self, name="num_features"):
        super().__init__()
        self.b, self.scale = OwnConv(8, 6, 3), OwnScale(name)

    def forward(self, x):
        return self.f(F.relu(self.b(self.scale(F.relu(self.bn(self.a(x)))))).mean((2, 3)))


def test_own_layers_are_cut_with_their_numbers():
    model = Custom()
    result = prune(model, config=plain_cut())
    assert torch.equal(result.model.scale.scale, model.scale.scale[list(kept(result, "a"))])
    assert same(result.model, masked(model, result, {"b": "a"}))


def test_an_own_layer_that_repeats_its_width_in_its_code_is_left_whole():
    result = prune(Custom("breadth"), width=None, config=plain_cut())
    assert result.model.a.out_channels == 8
    why = {skip.group: skip.why for skip in result.report.not_pruned}
    assert why["a"].startswith("the network does not run with fewer channels (RuntimeError: ")
    with pytest.raises(ConfigError, match="widths names 'a', which cannot be pruned: the network does not run with"):
        prune(Custom("breadth"), config=plain_cut())


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrised_layer_is_left_whole_and_told_how_to_become_plain(norm):
    model = SharedReLU()
    torch.manual_seed(0)
    norm(model.b)
    with pytest.raises(ModelError, match=r"b, whose weight is.*remove_parametrizations\(model.b, 'weight'\)"):
        prune(model, width=None)
    parametrize.remove_parametrizations(model.b, "weight")
    result = prune(model, config=plain_cut())
    assert same(result.model, masked(model, result, {"b": "a"}))


@pytest.mark.parametrize(
    ("wrap", "unwrap", "remedy"),
    [
        (nn.utils.weight_norm, nn.utils.remove_weight_norm, r"remove_weight_norm\(model.b, 'weight'\)"),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm, r"remove_spectral_norm\(model.b, 'weight'\)"),
        (
            lambda b: torch_prune.l1_unstructured(b, "weight", amount=0.5),
            lambda b: torch_prune.remove(b, "weight"),
            r"torch.nn.utils.prune.remove\(model.b, 'weight'\)",
        ),
    ],
)
def test_a_weight_that_a_hook_computes_is_refused_with_the_call_that_ends_it(wrap, unwrap, remedy):
    model = Net()
    quietly(wrap, model.b)
    with pytest.raises(TraceError, match=f"the weight of b is computed anew.*{remedy}"):
        prune(model)
    unwrap(model.b)
    assert len(kept(prune(model), "a")) == 4


def test_a_model_that_cannot_be_copied_is_refused():
    model = Net()
    model.latest = model(X)
    with pytest.raises(TraceError, match=r"the model cannot be copied.*detach them"):
        prune(model)


def test_layers_that_are_called_by_keyword_are_layers():
    class ByKeyword(Net):
        def forward(self, x):
            x = F.relu(self.bn(input=self.a(input=x)))
            return self.f(input=F.relu(self.b(input=x)).mean((2, 3)))

    same_result_as(ByKeyword(), Net())


# --- inputs and outputs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Identity(), nn.Sequential(nn.Flatten())])
def test_an_empty_model_is_refused(model):
    with pytest.raises(ModelError, match=r"shape \(1, 3, 8, 8\)|no convolution or linear layer was found"):
        prune(model, width=None)


def test_a_model_of_two_inputs_is_refused():
    class Two(Net):
        def forward(self, x, y):
            return super().forward(x + y)

    with pytest.raises(ModelError, match=r"the model fails on the example input.*missing 1 required positional"):
        prune(Two())


@pytest.mark.parametrize(
    ("wrap", "pick"), [(lambda y: (y, y), r"model\(x\)\[0\]"), (lambda y: {"logits": y}, r"model\(x\)\['logits'\]")]
)
def test_a_model_of_several_outputs_is_refused_and_told_how_to_pick(wrap, pick):
    class Several(Net):
        def forward(self, x):
            return wrap(super().forward(x))

    with pytest.raises(ModelError, match=f"one tensor of scores.*{pick}"):
        prune(Several())


@pytest.mark.parametrize(
    "change", [lambda x: x.sub_(0.5), lambda x: F.relu(x, inplace=True), lambda x: x[:, 1].zero_()]
)
def test_a_model_that_changes_its_input_is_refused_and_the_data_are_as_they_were(change):
    class Changing(Net):
        def forward(self, x):
            change(x)
            return super().forward(x)

    loader = batches()
    before = [x.clone() for x, _ in loader]
    with pytest.raises(ModelError, match=r"changes its input in place.*`x = x - mean`"):
        cosep.prune(Changing(), loader, config=settings())
    assert all(torch.equal(x, kept_) for (x, _), kept_ in zip(loader, before, strict=True))


class Binary(Net):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(6, 1)


class TwoScores(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        z = self.model(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def test_a_model_with_one_output_is_refused_and_the_wrapper_that_is_named_works():
    loader = [(x, y % 2) for x, y in batches()]
    with pytest.raises(ModelError, match=r"the model has one output.*torch.cat\(\[torch.zeros_like\(z\), z\], 1\)"):
        prune(Binary(), loader)
    assert len(kept(prune(TwoScores(Binary()), loader, group="model.a"), "model.a")) == 4


def test_the_callers_model_is_left_as_it_was_by_every_refusal():
    model = Net().half()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelError):
        prune(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# --- a memory of its own -------------------------------------------------------------------------------------------


class Queue(Net):
    """Hands a map on through a list of its own, which a pass that ends early leaves half filled."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(6, 5, 1)
        self.f = nn.Linear(5, CLASSES)
        self.waiting = []

    def forward(self, x):
        self.waiting.append(F.relu(self.bn(self.a(x))))
        x = F.relu(self.b(self.waiting[-1]))
        self.waiting.pop(0)
        return self.f(F.relu(self.c(x)).mean((2, 3)))


def test_what_a_pass_leaves_in_the_model_is_not_in_the_result():
    result = prune(Queue(), group="b", width=3, config=plain_cut())
    assert len(kept(result, "b")) == 3
    assert result.model.waiting == []
