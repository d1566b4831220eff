"""Errors that users meet: each says what was found, what is needed and what to do, and is also the standard type.

CosepError
  CalibrationError   ValueError    the data or labels given for statistics
  ConfigError        ValueError    a setting
  TraceError         RuntimeError  a model whose structure could not be read
  PlanError          ValueError    a plan that does not fit its model
  ArtifactError      RuntimeError  files on disk: damaged, newer, or of something else
  ExportError        RuntimeError  an export that failed or does not compute the same
  ModelError         ValueError    a model or checkpoint that is unknown or does not fit
  DataError          ValueError    a data set that is unknown, missing or damaged
  RecoveryError      RuntimeError  training that cannot go on
  RunError           RuntimeError  a run folder that is in use or belongs to another run
"""


class CosepError(Exception):
    """The base of every error that cosep raises on purpose."""


class CalibrationError(CosepError, ValueError):
    """Activations or labels from which no statistics can be made."""


class ConfigError(CosepError, ValueError):
    """A setting that is out of range, unknown or at odds with another."""


class TraceError(CosepError, RuntimeError):
    """A model whose structure could not be read."""


class PlanError(CosepError, ValueError):
    """A plan that does not fit the model it is for."""


class ArtifactError(CosepError, RuntimeError):
    """A saved artifact that is missing, damaged, too new or of another model."""


class ExportError(CosepError, RuntimeError):
    """An export that failed or does not compute what the model computes."""


class ModelError(CosepError, ValueError):
    """A model name, factory or checkpoint that is unknown or does not fit."""


class DataError(CosepError, ValueError):
    """A data set that is unknown, missing or damaged."""


class RecoveryError(CosepError, RuntimeError):
    """A recovery that cannot go on."""


class RunError(CosepError, RuntimeError):
    """A run folder that is in use, or belongs to another run."""
