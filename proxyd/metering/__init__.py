"""What a session may spend: its budget in memory, and who writes the counts down."""
