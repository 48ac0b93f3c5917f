"""The assistant: it chats, looks at photos of good deeds, and rewards them."""
