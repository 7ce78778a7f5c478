-- The database of release 0.1.0, in the dialect of PostgreSQL, with a command and some usage.
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
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
    kind VARCHAR(16) DEFAULT 'jobs' NOT NULL,
    task VARCHAR(253) DEFAULT '' NOT NULL,
    pod VARCHAR(253) DEFAULT '' NOT NULL,
    partition VARCHAR(253) DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX commands_by_job ON commands (namespace, job, received_at);
CREATE INDEX commands_by_command ON commands (namespace, command);
CREATE INDEX commands_open ON commands (received_at, id) WHERE finished_at IS NULL;
CREATE TABLE idempotency_keys (
    "key" VARCHAR(64) NOT NULL,
    operation VARCHAR(36) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    owner VARCHAR(36) NOT NULL,
    lease_until VARCHAR(27) NOT NULL,
    received_at VARCHAR(27) NOT NULL,
    "plan" BYTEA,
    status INTEGER,
    body BYTEA,
    media_type VARCHAR(100),
    location TEXT,
    PRIMARY KEY ("key")
);
CREATE INDEX idempotency_keys_by_time ON idempotency_keys (received_at);
CREATE INDEX commands_by_finish ON commands (finished_at);
CREATE TABLE history_jobs (
    uid TEXT NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    queue TEXT NOT NULL,
    username TEXT NOT NULL,
    phase TEXT NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    spec TEXT,
    spec_bytes INTEGER NOT NULL,
    labels TEXT NOT NULL,
    tasks TEXT NOT NULL,
    resource_version TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    deleted_at BIGINT,
    ended_at BIGINT NOT NULL,
    incomplete TEXT NOT NULL,
    PRIMARY KEY (uid)
);
CREATE INDEX history_jobs_by_end ON history_jobs (ended_at, uid);
CREATE INDEX history_jobs_by_namespace ON history_jobs (namespace, ended_at, uid);
CREATE INDEX history_jobs_by_queue ON history_jobs (queue, ended_at, uid);
CREATE INDEX history_jobs_by_user ON history_jobs (username, ended_at, uid);
CREATE INDEX history_jobs_by_phase ON history_jobs (phase, ended_at, uid);
CREATE INDEX history_jobs_by_namespace_phase ON history_jobs (namespace, phase, ended_at, uid);
CREATE INDEX history_jobs_by_name ON history_jobs (namespace, name, ended_at);
CREATE INDEX history_jobs_by_deletion ON history_jobs (deleted_at, kind);
CREATE TABLE history_phases (
    job_uid TEXT NOT NULL,
    number INTEGER NOT NULL,
    phase TEXT NOT NULL,
    entered_at BIGINT NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (job_uid, number)
);
CREATE TABLE history_marks (
    job_uid TEXT NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (job_uid)
);
CREATE TABLE history_job_usage (
    job_uid TEXT NOT NULL,
    resource TEXT NOT NULL,
    amount DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_uid, resource)
);
CREATE TABLE history_pods (
    uid TEXT NOT NULL,
    job_uid TEXT NOT NULL,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    job TEXT NOT NULL,
    queue TEXT NOT NULL,
    requests TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    exact BOOLEAN NOT NULL,
    counted BOOLEAN NOT NULL,
    present BOOLEAN NOT NULL,
    PRIMARY KEY (uid)
);
CREATE INDEX history_pods_by_job ON history_pods (job_uid);
CREATE INDEX history_pods_by_state ON history_pods (counted, present);
CREATE TABLE history_usage (
    step INTEGER NOT NULL,
    bucket BIGINT NOT NULL,
    queue TEXT NOT NULL,
    username TEXT NOT NULL,
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    amount DOUBLE PRECISION NOT NULL,
    inexact INTEGER NOT NULL,
    PRIMARY KEY (step, bucket, queue, username, namespace, resource)
);
CREATE TABLE history_streams (
    resource TEXT NOT NULL,
    position TEXT NOT NULL,
    observed_at BIGINT NOT NULL,
    PRIMARY KEY (resource)
);
CREATE TABLE history_gaps (
    resource TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    PRIMARY KEY (resource, started_at)
);
CREATE INDEX history_gaps_by_end ON history_gaps (ended_at);
CREATE TABLE history_recorder (
    "only" INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY ("only")
);
INSERT INTO alembic_version VALUES ('0005');
INSERT INTO commands (
    id, namespace, job, job_uid, action, who, command, command_uid, state, detail, received_at
) VALUES (
    '1', 'default', 'train', 'u', 'AbortJob', 'ada', 'train-1', '', 'Accepted', '',
    '2026-01-02T12:00:00.000000Z'
);
INSERT INTO history_usage VALUES (3600, 7200, 'research', 'ada', 'default', 'cpu', 1.5, 0);
