"""Where the model is still weak: success and failure kinds by capability and template."""

from pipeline.diagnosis.diagnose import Diagnosis, demonstrated_calls, diagnose, valid_call_rate

__all__ = ["Diagnosis", "demonstrated_calls", "diagnose", "valid_call_rate"]
