-- The schema of the releases before Alembic, as their code created it, with one command.
CREATE TABLE schema_version (
    "only" INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY ("only")
);
CREATE TABLE commands (
    id VARCHAR(36) NOT NULL,
    namespace VARCHAR(63) NOT NULL,
    job VARCHAR(253) NOT NULL,
    job_uid VARCHAR(36) NOT NULL,
    action VARCHAR(32) NOT NULL,
    who TEXT NOT NULL,
    command VARCHAR(253) NOT NULL,
    command_uid VARCHAR(36) NOT NULL,
    state VARCHAR(16) NOT NULL,
    detail TEXT NOT NULL,
    received_at VARCHAR(27) NOT NULL,
    finished_at VARCHAR(27),
    PRIMARY KEY (id)
);
CREATE INDEX commands_by_job ON commands (namespace, job, received_at);
CREATE INDEX commands_by_state ON commands (state);
CREATE INDEX commands_by_command ON commands (namespace, command);
INSERT INTO schema_version ("only", version) VALUES (1, 3);
INSERT INTO commands (
    id, namespace, job, job_uid, action, who, command, command_uid, state, detail, received_at
) VALUES (
    '1', 'default', 'train', 'u', 'AbortJob', 'ada', 'train-1', '', 'Accepted', '',
    '2026-01-02T12:00:00.000000Z'
);
