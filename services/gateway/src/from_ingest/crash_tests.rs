//! The rules that a gateway stores: after a crash at any step it has the old set or the new one,
//! complete.

use contracts::vitals::{FollowRulesResponse, PatientRules, RulesDocument};
use testkit::disk::{Crash, FakeDisk};
use vitals::RuleSet;

use crate::{
    from_ingest::{RulesFile, rules_file::LoadError},
    journal::{Disk, DiskFile, test_disk::TestDisk},
    rules_in_force::RulesInForce,
};

pub fn in_force(version: u32) -> RulesInForce {
    let answer = FollowRulesResponse {
        documents: vec![RulesDocument {
            subject: "default".into(),
            version,
            body: serde_json::to_string(&RuleSet::default_set()).unwrap(),
        }],
        patients: vec![PatientRules {
            patient: "ada".into(),
            devices: vec!["belt-1".into()],
            subject: "default".into(),
            spo2_scale: 1,
        }],
        ..FollowRulesResponse::default()
    };
    RulesInForce::default().take(answer).0
}

#[test]
fn after_a_crash_at_any_step_there_is_a_whole_book() {
    for seed in 0..50 {
        let mut crashes = 0;
        for crash in [Crash::Process, Crash::Power] {
            for step in 0.. {
                let disk = FakeDisk::new(seed);
                let file = RulesFile(TestDisk(disk.clone()));
                file.store(&in_force(1)).unwrap();
                disk.crash_at(disk.boundaries() + step);
                let stored = file.store(&in_force(2)).is_ok();
                if !disk.is_dead() {
                    assert!(stored);
                    break;
                }
                crashes += 1;
                disk.restart(crash);
                let found = file.load().unwrap();
                assert!(
                    found == in_force(1) || found == in_force(2),
                    "seed {seed}, step {step}"
                );
                assert!(!stored || found == in_force(2), "durable when it returned");
                // The next write succeeds, whatever the crash has left.
                file.store(&in_force(3)).unwrap();
                assert_eq!(file.load().unwrap(), in_force(3));
            }
        }
        assert!(crashes >= 8, "{crashes} crashes only");
    }
}

#[test]
fn a_damaged_book_is_not_judged_by() {
    let file = RulesFile(TestDisk(FakeDisk::new(1)));
    assert_eq!(
        file.load().unwrap(),
        RulesInForce::default(),
        "none was kept"
    );
    file.store(&in_force(1)).unwrap();
    let bytes = file.0.read_at("rules", 0, 1 << 20).unwrap();
    for at in [0, 3, 4, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let mut written = file.0.create("rules").unwrap();
        written.append(&damaged).unwrap();
        assert!(matches!(file.load(), Err(LoadError::Damaged)), "byte {at}");
    }
    let mut written = file.0.create("rules").unwrap();
    written.append(&bytes[..3]).unwrap();
    assert!(matches!(file.load(), Err(LoadError::Damaged)), "cut short");
}
