"""The assistant: it chats, judges photos of good deeds, and rewards them."""
