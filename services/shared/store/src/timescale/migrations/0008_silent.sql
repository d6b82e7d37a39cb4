-- What is silent: the open alert of each subject, and the newest arrivals when its silence began.
CREATE TABLE silent (
    subject text COLLATE "C" PRIMARY KEY,
    alert text NOT NULL UNIQUE,
    reading_us bigint NOT NULL,
    report_us bigint NOT NULL
);
-- One row: when silence was last judged and nothing had arrived.
CREATE TABLE silent_look (
    id int PRIMARY KEY,
    at_us bigint NOT NULL
);
