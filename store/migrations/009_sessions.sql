-- Of the sessions of a user, who may have nearly all of them, those of one agent.
CREATE INDEX sessions_by_user_and_agent ON sessions (user_id, agent_id, created_at);
