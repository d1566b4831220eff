import subprocess
import sys

# What torchvision does while it is imported: it registers Python code for operators of its compiled library.
TORCHVISION = """
import torch
import torchvision.extension

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    raise AssertionError

@torch.library.register_fake("torchvision::qnms")
def qnms(dets, scores, iou_threshold):
    raise AssertionError

complete = True
"""


def test_torchvision_is_imported_although_its_compiled_operators_are_missing(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(TORCHVISION)
    (tmp_path / "torchvision" / "extension.py").write_text("")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from cosep.errors import ModelError\n"
        "from cosep.plugins import import_extra\n"
        "try:\n    import torchvision\nexcept RuntimeError as e:\n    assert 'torchvision::nms' in str(e)\n"
        "else:\n    raise SystemExit('the import was expected to fail by itself')\n"
        "assert import_extra('torchvision', ModelError).complete\n"
        "assert import_extra('torchvision', ModelError).complete\n"
    )
    # A process of its own: declared operators stay for as long as a process lives.
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_importing_the_package_imports_no_optional_library():
    script = "import sys, cosep.zoo, cosep.data; assert not {'torchvision', 'timm', 'PIL'} & set(sys.modules)"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
