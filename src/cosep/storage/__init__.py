"""A cut model on disk: an artifact to load again, and exports for other runtimes."""

from cosep.storage.export import ExportCheck, export_onnx, export_torch
from cosep.storage.folder import Artifact, read_artifact, write_artifact

__all__ = ["Artifact", "ExportCheck", "export_onnx", "export_torch", "read_artifact", "write_artifact"]
