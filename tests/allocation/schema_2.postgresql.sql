-- The tables as version 2 made them, before its own later step.
CREATE TABLE optuna_deadline_event (
    id BIGSERIAL NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    pool VARCHAR(255),
    kind VARCHAR(32) NOT NULL,
    study_id INTEGER,
    number INTEGER,
    slot INTEGER,
    fence BIGINT,
    term BIGINT,
    worker VARCHAR(36),
    detail TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX ix_optuna_deadline_event_pool ON optuna_deadline_event (pool, id);
CREATE TABLE optuna_deadline_pool (
    name VARCHAR(255) NOT NULL,
    epoch BIGINT NOT NULL,
    ttl DOUBLE PRECISION NOT NULL,
    grace DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE optuna_deadline_study (
    study_id SERIAL NOT NULL,
    name VARCHAR(512) NOT NULL,
    direction VARCHAR(16) NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    deadline DOUBLE PRECISION NOT NULL,
    duration DOUBLE PRECISION,
    policy VARCHAR(64) NOT NULL,
    parameters TEXT NOT NULL,
    gate_closed DOUBLE PRECISION,
    settled DOUBLE PRECISION,
    PRIMARY KEY (study_id),
    UNIQUE (name)
);
CREATE TABLE optuna_deadline_version (
    id SERIAL NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE optuna_deadline_checkpoint (
    id BIGSERIAL NOT NULL,
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    fence BIGINT NOT NULL,
    step INTEGER NOT NULL,
    value DOUBLE PRECISION,
    path TEXT NOT NULL,
    size BIGINT NOT NULL,
    checksum VARCHAR(128) NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
CREATE INDEX ix_optuna_deadline_checkpoint_trial ON optuna_deadline_checkpoint (study_id, number);
CREATE TABLE optuna_deadline_leader (
    pool VARCHAR(255) NOT NULL,
    holder VARCHAR(36),
    term BIGINT NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (pool),
    FOREIGN KEY(pool) REFERENCES optuna_deadline_pool (name) ON DELETE CASCADE
);
CREATE TABLE optuna_deadline_report (
    id BIGSERIAL NOT NULL,
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    value DOUBLE PRECISION,
    fence BIGINT NOT NULL,
    slots INTEGER NOT NULL,
    trained DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (study_id, number, step),
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
CREATE INDEX ix_optuna_deadline_report_study ON optuna_deadline_report (study_id, id);
CREATE TABLE optuna_deadline_rung (
    study_id INTEGER NOT NULL,
    rung INTEGER NOT NULL,
    number INTEGER NOT NULL,
    value DOUBLE PRECISION,
    PRIMARY KEY (study_id, rung, number),
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
CREATE INDEX ix_optuna_deadline_rung_value ON optuna_deadline_rung (study_id, rung, value);
CREATE TABLE optuna_deadline_segment (
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    fence BIGINT NOT NULL,
    worker VARCHAR(36) NOT NULL,
    slots INTEGER NOT NULL,
    granted DOUBLE PRECISION NOT NULL,
    ended DOUBLE PRECISION,
    outcome VARCHAR(16),
    startup DOUBLE PRECISION,
    stop DOUBLE PRECISION,
    position_from DOUBLE PRECISION,
    position_to DOUBLE PRECISION,
    trained DOUBLE PRECISION,
    PRIMARY KEY (study_id, number, fence),
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
CREATE TABLE optuna_deadline_slot (
    id BIGSERIAL NOT NULL,
    host VARCHAR(255) NOT NULL,
    device VARCHAR(64) NOT NULL,
    pool VARCHAR(255) NOT NULL,
    provider VARCHAR(36) NOT NULL,
    fence BIGINT NOT NULL,
    holder VARCHAR(36),
    study_id INTEGER,
    number INTEGER,
    lease DOUBLE PRECISION,
    PRIMARY KEY (id),
    UNIQUE (host, device),
    CONSTRAINT held_means_leased CHECK ((holder IS NULL) = (lease IS NULL)),
    FOREIGN KEY(pool) REFERENCES optuna_deadline_pool (name) ON DELETE CASCADE
);
CREATE INDEX ix_optuna_deadline_slot_holder ON optuna_deadline_slot (holder);
CREATE INDEX ix_optuna_deadline_slot_pool ON optuna_deadline_slot (pool, provider);
CREATE TABLE optuna_deadline_trial (
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    trial_id INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    fence BIGINT NOT NULL,
    owner VARCHAR(36),
    desired_mode VARCHAR(8) NOT NULL,
    desired_worker VARCHAR(36),
    desired_slots INTEGER NOT NULL,
    reason TEXT NOT NULL,
    desired_since DOUBLE PRECISION NOT NULL,
    horizon INTEGER,
    value DOUBLE PRECISION,
    told BOOLEAN NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (study_id, number),
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
CREATE INDEX ix_optuna_deadline_trial_state ON optuna_deadline_trial (study_id, state);
CREATE TABLE optuna_deadline_worker (
    id VARCHAR(36) NOT NULL,
    pool VARCHAR(255) NOT NULL,
    study_id INTEGER NOT NULL,
    host VARCHAR(255) NOT NULL,
    pid INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    registered DOUBLE PRECISION NOT NULL,
    lease DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(pool) REFERENCES optuna_deadline_pool (name) ON DELETE CASCADE,
    FOREIGN KEY(study_id) REFERENCES optuna_deadline_study (study_id) ON DELETE CASCADE
);
