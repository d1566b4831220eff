"""stub"""
from cosep.report.run import RunRecord
def run_page(run: RunRecord) -> str:
    return "<p>soon"
