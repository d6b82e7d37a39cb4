#![allow(clippy::unwrap_used)]

use testkit::disk::FakeDisk;

use super::*;
use crate::journal::{Disk, DiskFile, test_disk::TestDisk};

const START_US: i64 = 1_800_000_000_000_000;
const S: i64 = 1_000_000;

fn at(second: i64) -> Moment {
    Moment {
        wall_us: START_US + second * S,
        uptime_us: 1_000 * S + second * S,
        boot: 7,
    }
}

fn transition(id: &str, priority: Priority, state: AlertState) -> (Alert, EdgeAlert) {
    let alert = Alert {
        id: id.into(),
        patient: "ada".into(),
        device: "belt".into(),
        rule: "fall".into(),
        priority: priority.into(),
        state: state.into(),
        since_us: START_US,
        changed_us: START_US + 5 * S,
        ..Alert::default()
    };
    let report = EdgeAlert {
        sequence: 9,
        time_us: START_US + 5 * S,
        ..edge_alert(&alert, 0).unwrap()
    };
    (alert, report)
}

fn raised(id: &str, priority: Priority) -> (Alert, EdgeAlert) {
    transition(id, priority, AlertState::Active)
}

fn ended(id: &str, priority: Priority) -> (Alert, EdgeAlert) {
    transition(id, priority, AlertState::Resolved)
}

fn core(alerts: &[(&str, bool)]) -> HighAlerts {
    let alerts = alerts.iter().map(|(id, acknowledged)| HighAlert {
        id: (*id).into(),
        patient: "ada".into(),
        device: "belt".into(),
        rule: "fall".into(),
        acknowledged: *acknowledged,
    });
    HighAlerts {
        alerts: alerts.collect(),
    }
}

fn ids(open: &OpenAlerts, now: Moment) -> Vec<String> {
    open.list(now).into_iter().map(|alert| alert.id).collect()
}

#[test]
fn a_high_alert_stays_until_a_person_acknowledges_it() {
    let open = OpenAlerts::default();
    let (high, medium) = (Priority::High, Priority::Medium);
    open.note(vec![raised("fall", high), raised("pulse", medium)], at(5));
    assert_eq!(ids(&open, at(5)), ["fall", "pulse"]);
    open.note(vec![ended("fall", high), ended("pulse", medium)], at(60));
    let list = open.list(at(65));
    assert_eq!(list.len(), 1);
    assert!(list[0].ended && list[0].acknowledged_by.is_empty());
    assert_eq!(list[0].age_ms, 65_000);
    let acknowledged = open.acknowledge("fall", " Eve Carer ", at(70)).unwrap();
    let report = acknowledged.report.unwrap();
    assert_eq!(report.acknowledged_by, "Eve Carer");
    assert_eq!(report.acknowledged_us, START_US + 70 * S);
    assert_eq!((report.sequence, report.time_us), (0, START_US + 5 * S));
    assert!(!report.resolved);
    assert!(open.list(at(70)).is_empty());
    let again = open.acknowledge("fall", "Bob", at(71)).unwrap();
    assert!(again.report.is_none());
    assert_eq!(again.alert.acknowledged_by, "Eve Carer");
    assert!(open.acknowledge("other", "Bob", at(71)).is_none());
}

#[test]
fn an_acknowledged_alert_stays_while_its_condition_lasts() {
    let open = OpenAlerts::default();
    open.note(vec![raised("fall", Priority::High)], at(5));
    assert!(
        open.acknowledge("fall", "Eve", at(6))
            .unwrap()
            .report
            .is_some()
    );
    assert!(
        open.acknowledge("fall", "Bob", at(7))
            .unwrap()
            .report
            .is_none()
    );
    assert_eq!(open.list(at(8))[0].acknowledged_by, "Eve");
    open.note(vec![ended("fall", Priority::High)], at(9));
    assert!(open.list(at(9)).is_empty());
}

/// The wall clock counts only where the machine was restarted.
#[test]
fn a_step_of_the_clock_changes_no_age() {
    let open = OpenAlerts::default();
    open.note(vec![raised("fall", Priority::High)], at(5));
    let stepped = Moment {
        wall_us: START_US - 86_400 * S,
        ..at(10)
    };
    assert_eq!(open.list(stepped)[0].age_ms, 10_000);
    let restarted = Moment { boot: 8, ..at(20) };
    assert_eq!(open.list(restarted)[0].age_ms, 20_000);
}

#[test]
fn the_core_acknowledges_this_episode_and_not_the_one_before() {
    let open = OpenAlerts::default();
    open.on_core(&core(&[("earlier", true)]));
    open.note(vec![raised("fall", Priority::High)], at(5));
    open.on_core(&core(&[("earlier", true)]));
    open.on_core(&core(&[("earlier", true), ("this", false)]));
    assert_eq!(open.list(at(6))[0].acknowledged_by, "");
    open.on_core(&core(&[("this", true)]));
    assert_eq!(open.list(at(6))[0].acknowledged_by, BY_THE_TEAM);
}

#[test]
fn an_ended_alert_that_the_core_closes_is_gone() {
    let open = OpenAlerts::default();
    open.note(vec![raised("fall", Priority::High)], at(5));
    open.note(vec![ended("fall", Priority::High)], at(6));
    open.on_core(&core(&[]));
    assert_eq!(open.list(at(7)).len(), 1, "the core does not know it yet");
    open.on_core(&core(&[("this", false)]));
    open.on_core(&core(&[]));
    assert!(open.list(at(8)).is_empty());
}

#[test]
fn a_full_list_drops_the_least_urgent() {
    let open = OpenAlerts::default();
    open.note(vec![raised("fall", Priority::High)], at(1));
    for number in 0..OPEN_MAX {
        open.note(vec![raised(&number.to_string(), Priority::Medium)], at(2));
    }
    let list = ids(&open, at(3));
    assert_eq!((list.len(), list[0].as_str()), (OPEN_MAX, "fall"));
}

#[tokio::test]
async fn a_restart_continues_the_list() {
    let disk = TestDisk(FakeDisk::new(1));
    let (file, stored) = AlertsFile::open(disk.clone()).unwrap();
    assert_eq!(stored, []);
    let open = OpenAlerts::default();
    let all = ["over", "active", "acknowledged", "quiet"];
    open.note(all.map(|id| raised(id, Priority::High)).to_vec(), at(5));
    open.note(vec![ended("over", Priority::High)], at(6));
    open.acknowledge("acknowledged", "Eve", at(7)).unwrap();
    open.note(vec![raised("medium", Priority::Medium)], at(8));
    file.keep(&open).await;

    // The rules ended one meanwhile, and have one that the file lacks.
    let (_, stored) = AlertsFile::open(disk).unwrap();
    let active = ["active", "acknowledged", "new"].map(|id| raised(id, Priority::High).0);
    let open = OpenAlerts::restored(stored, active.to_vec(), "g1", at(100));
    let list = open.list(at(100));
    let shown = |id: &str| {
        let alert = list.iter().find(|alert| alert.id == id).unwrap();
        (alert.ended, alert.acknowledged_by.as_str())
    };
    assert_eq!(list.len(), 5);
    assert_eq!([shown("over"), shown("quiet")], [(true, ""); 2]);
    assert_eq!([shown("active"), shown("new")], [(false, ""); 2]);
    assert_eq!(shown("acknowledged"), (false, "Eve"));
    let report = open.acknowledge("new", "Eve", at(101)).unwrap().report;
    let report = report.unwrap();
    assert_eq!((report.gateway.as_str(), report.since_us), ("g1", START_US));
}

#[tokio::test]
async fn a_damaged_file_costs_no_active_alert() {
    let disk = TestDisk(FakeDisk::new(1));
    let (file, _) = AlertsFile::open(disk.clone()).unwrap();
    let open = OpenAlerts::default();
    open.note(vec![raised("fall", Priority::High)], at(5));
    file.keep(&open).await;
    let mut bytes = disk.read_at("alerts", 0, 1 << 20).unwrap();
    bytes[10] ^= 1;
    disk.create("alerts").unwrap().append(&bytes).unwrap();
    let (_, stored) = AlertsFile::open(disk).unwrap();
    assert_eq!(stored, []);
    let active = vec![raised("fall", Priority::High).0];
    let open = OpenAlerts::restored(stored, active, "g1", at(9));
    assert_eq!(ids(&open, at(9)), ["fall"]);
}
