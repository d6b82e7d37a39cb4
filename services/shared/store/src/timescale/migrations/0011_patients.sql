-- The stay of a patient. status: braid.patients.v1.PatientStatus; patients of an older version are admitted. record: the encoded
-- braid.patients.v1.Patient, whose columns count where both have a value. revision: the number of changes.
ALTER TABLE patients ADD COLUMN status int NOT NULL DEFAULT 2;
ALTER TABLE patients ADD COLUMN status_us bigint NOT NULL DEFAULT 0;
ALTER TABLE patients ADD COLUMN merged_into text NOT NULL DEFAULT '';
ALTER TABLE patients ADD COLUMN revision bigint NOT NULL DEFAULT 0;
ALTER TABLE patients ADD COLUMN record bytea NOT NULL DEFAULT '';
CREATE INDEX patients_status ON patients (status, status_us);
CREATE INDEX patients_merged ON patients (merged_into) WHERE merged_into <> '';
-- Names of patients in other systems.
CREATE TABLE patient_identifiers (
    tenant text NOT NULL,
    system text NOT NULL,
    value text NOT NULL,
    patient text NOT NULL,
    PRIMARY KEY (tenant, system, value)
);
CREATE INDEX patient_identifiers_patient ON patient_identifiers (patient);
