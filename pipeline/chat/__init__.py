"""Chats: messages in, one message out. Import the kind you need from its module."""
