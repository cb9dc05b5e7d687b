"""What users and assistants say in planned dialogues: by templates, or by a chat under the same checks."""
