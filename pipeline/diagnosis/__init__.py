"""Where the model is still weak: success and failure kinds by capability and template."""
