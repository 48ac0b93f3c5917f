-- Complaints about traffic, as tickets. The history of a ticket is its rows in the log of the staff:
-- each change of its state is an act. Free text (the complaint, notes, answers) is in `texts`; `facts` is
-- JSON: the exit's address, the time, the destination and the ports of the complaint.
CREATE TABLE tickets (
    number BIGINT PRIMARY KEY,
    category TEXT NOT NULL,
    state TEXT NOT NULL,
    opened_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    user_id TEXT REFERENCES users (id),
    facts TEXT NOT NULL,
    closed_at BIGINT,
    outcome TEXT,
    CONSTRAINT tickets_numbered CHECK (number > 0),
    CONSTRAINT tickets_known_category CHECK (
        category IN ('abuse', 'scan', 'spam', 'break_in', 'phishing', 'child_abuse')
    ),
    CONSTRAINT tickets_known_state CHECK (
        state IN ('new', 'looked_up', 'contacted', 'suspended', 'answered', 'legal', 'closed')
    ),
    CONSTRAINT tickets_known_outcome CHECK (
        outcome IN ('no_match', 'not_ours', 'unfounded', 'customer_warned', 'customer_closed')
    ),
    CONSTRAINT tickets_closed_whole CHECK (
        (state = 'closed') = (closed_at IS NOT NULL) AND (closed_at IS NULL) = (outcome IS NULL)
    )
);
