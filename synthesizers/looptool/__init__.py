"""LoopTool (arXiv 2511.09148): probe the model on its training set, repair wrong labels, expand its errors.

probing (GCP) -> verification and repairing (JGLV) -> expansion (EDDE) -> rounds (what is trained next).
"""
