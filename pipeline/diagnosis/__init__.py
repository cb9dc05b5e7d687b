"""Where the model is still weak: success and failure kinds by capability and template, weaknesses, a plan."""

from pipeline.diagnosis.diagnose import Diagnosis, diagnose, valid_call_rate
from pipeline.diagnosis.gold import GoldBook

__all__ = ["Diagnosis", "GoldBook", "diagnose", "valid_call_rate"]
