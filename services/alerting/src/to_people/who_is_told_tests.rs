//! People who are notified, by kind of alert, by its scope and by the configuration.
//!
//! | letter | told at once |
//! |---|---|
//! | p, e, n | the person, the emergency contact, the nurse on call, each by e-mail |
//! | w | the recipients of `--email-to` |
//! | h | the webhook |
//! | - | nobody: the alert is tried again, and `/readyz` has the warning `alerts-untold` |

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use bus::{EmbeddedBus, EmbeddedOptions};
use contracts::{
    alerts::{AlertState, Document, NoticeOutcome, NoticeResult},
    vitals::Priority,
};
use store::{AlertsBatch, DeviceEntry, PatientEntry, Scope, Spo2Scale, SqliteStore, TimerChange};
use vitals::silence::{DEVICE, GATEWAY, PATH, PIPELINE, SIGNAL};

use super::*;
use crate::{
    proof::proven_except,
    reach::{Known, gaps},
    rules_in_force::DocumentsInForce,
    team::{EXAMPLE, Team},
};

/// Kinds of alerts that are told alike: priority, whether it has a patient, and rules. A silent
/// gateway inhibits the silences behind it, so it comes behind them.
const KINDS: [(&str, Priority, bool, &[&str]); 5] = [
    (
        "high",
        Priority::High,
        true,
        &["heart-rate-very-high", "fall"],
    ),
    ("medium", Priority::Medium, true, &["fever", DEVICE]),
    ("low", Priority::Low, true, &["battery-low", SIGNAL]),
    ("path", Priority::Low, false, &[PATH]),
    ("gateway", Priority::Medium, false, &[GATEWAY, PIPELINE]),
];

const CONFIGURATIONS: [&str; 5] = ["mail, ward", "mail", "webhook", "mail is down", "none"];

const TABLE: &str = "
    whom it concerns   | kind    | mail, ward | mail | webhook | mail is down | none
    listed patient     | high    | pe         | pe   | h       | penw         | -
    listed patient     | medium  | p          | p    | h       | penw         | -
    listed patient     | low     | pn         | pn   | h       | pnw          | -
    listed patient     | gateway | n          | n    | h       | nw           | -
    listed patient     | path    | n          | n    | h       | nw           | -
    unlisted patient   | high    | n          | n    | h       | nw           | -
    unlisted patient   | medium  | n          | n    | h       | nw           | -
    unlisted patient   | low     | n          | n    | h       | nw           | -
    unlisted patient   | gateway | n          | n    | h       | nw           | -
    unlisted patient   | path    | n          | n    | h       | nw           | -
    no addresses       | high    | w          | -    | h       | w            | -
    no addresses       | medium  | w          | -    | h       | w            | -
    no addresses       | low     | w          | -    | h       | w            | -
    no addresses       | gateway | w          | -    | h       | w            | -
    no addresses       | path    | w          | -    | h       | w            | -
    no team            | high    | w          | -    | h       | w            | -
    no team            | medium  | w          | -    | h       | w            | -
    no team            | low     | w          | -    | h       | w            | -
    no team            | gateway | w          | -    | h       | w            | -
    no team            | path    | w          | -    | h       | w            | -
    not registered     | high    | w          | -    | h       | w            | -
    not registered     | medium  | w          | -    | h       | w            | -
    not registered     | low     | w          | -    | h       | w            | -
    not registered     | gateway | w          | -    | h       | w            | -
    not registered     | path    | w          | -    | h       | w            | -";

fn channels(configuration: &str) -> Channels {
    let ward = ["mail, ward", "mail is down"].contains(&configuration);
    Channels {
        webhook: configuration == "webhook",
        email: configuration.starts_with("mail"),
        email_to: if ward {
            vec!["ward@example.org".to_owned()]
        } else {
            Vec::new()
        },
        ..Channels::default()
    }
}

fn team(concerns: &str) -> Option<Team> {
    let names: &[&str] = match concerns {
        "listed patient" | "unlisted patient" => &[],
        "no addresses" => &["ada", "ben", "day", "night"],
        _ => return None,
    };
    let text = names.iter().fold(EXAMPLE.to_owned(), |text, name| {
        text.replace(&format!(", \"email\": \"{name}@example.org\""), "")
    });
    Some(Team::from_json(&text).unwrap())
}

/// One ward with its store, and the decider of a member.
struct Ward {
    _directory: tempfile::TempDir,
    context: Context,
    decider: Decider,
    team: Option<Team>,
    patient: PatientEntry,
}

impl Ward {
    async fn new(concerns: &str, configuration: &str) -> Ward {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let bus = EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap();
        let patient = PatientEntry {
            id: if concerns == "unlisted patient" {
                "cal"
            } else {
                "ada"
            }
            .to_owned(),
            tenant: "one".to_owned(),
            name: "Ada Example".to_owned(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        if concerns != "not registered" {
            store.put_patient(&patient).await.unwrap();
            let device = DeviceEntry {
                id: "belt".to_owned(),
                tenant: "one".to_owned(),
                gateway: "gw".to_owned(),
                patient: patient.id.clone(),
                registered_us: i64::MIN,
            };
            store.put_device(&device).await.unwrap();
        }
        let team = team(concerns);
        let document = Document {
            tenant: "one".to_owned(),
            ..Document::default()
        };
        let teams = team.iter().map(|team| (document.clone(), team.clone()));
        let in_force = DocumentsInForce::new(teams.collect(), Vec::new(), Vec::new());
        let context = Context::new("alerting");
        let decider = Decider {
            bus: Arc::new(bus),
            subjects: Subjects::new(Arc::clone(&store)),
            store,
            in_force: tokio::sync::watch::channel(Arc::new(in_force)).1,
            router: Mutex::new(Router::new(channels(configuration))),
            wakes: Vec::new(),
            express: crate::express::lane().1,
            published: Published::default(),
            restored: None,
            failing: HashSet::new(),
            looked_ahead: None,
            clock: context.clock().clone(),
            followed_step: 0,
            turns: Arc::new(context.health().progress("people", LOOP_SILENCE_MAX)),
            shutdown: context.shutdown().clone(),
            undecided: Undecided::new(&context),
            untold: context.health().warning("alerts-untold"),
        };
        Ward {
            _directory: directory,
            context,
            decider,
            team,
            patient,
        }
    }

    fn alert(&self, rule: &str, priority: Priority, has_patient: bool) -> Alert {
        Alert {
            id: rule.to_owned(),
            patient: if has_patient {
                self.patient.id.clone()
            } else {
                String::new()
            },
            gateway: if rule == PIPELINE { "" } else { "gw" }.to_owned(),
            rule: rule.to_owned(),
            priority: priority.into(),
            state: AlertState::Active.into(),
            since_us: contracts::now_us(),
            revision: 1,
            ..Alert::default()
        }
    }

    /// Raises the alert. If `is_down`, each notice fails for good, and the next step follows.
    async fn told(&self, alert: &Alert, is_down: bool) -> String {
        let store = &self.decider.store;
        let batch = AlertsBatch {
            transitions: vec![alert.clone()],
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        self.decider.decide(alert, None).await.unwrap();
        let mut told = BTreeSet::new();
        for _ in 0..10 {
            let records = store.notices(&Scope::Service, &alert.id).await.unwrap();
            let (settled, waiting): (Vec<_>, Vec<_>) =
                records.iter().partition(|record| record.outcome.is_some());
            let notices = waiting.iter().filter_map(|record| record.notice.as_ref());
            let letters = notices
                .clone()
                .map(|notice| match notice.recipient.as_str() {
                    "" => 'h',
                    "ada@example.org" => 'p',
                    "ben@example.org" => 'e',
                    "day@example.org" | "night@example.org" => 'n',
                    "ward@example.org" => 'w',
                    other => panic!("{other}"),
                });
            told.extend(letters);
            let Some(first) = notices.clone().next().filter(|_| is_down) else {
                assert!(is_down || settled.is_empty());
                break;
            };
            let timer = timer_of(alert, &first.tenant);
            let failed = NoticesBatch {
                outcomes: notices
                    .map(|notice| NoticeOutcome {
                        notice: notice.id.clone(),
                        result: NoticeResult::GivenUp.into(),
                        ..NoticeOutcome::default()
                    })
                    .collect(),
                timers: vec![TimerChange::Hasten {
                    timer: timer.clone(),
                    at_us: contracts::now_us(),
                }],
                ..NoticesBatch::default()
            };
            store.write_notices(failed).await.unwrap();
            let timer = store.timer(&timer).await.unwrap();
            self.decider.decide(alert, timer).await.unwrap();
        }
        let letters = ['p', 'e', 'n', 'w', 'h'];
        let told: String = letters.iter().filter(|it| told.contains(it)).collect();
        if told.is_empty() {
            "-".to_owned()
        } else {
            told
        }
    }

    /// Whether the gap is shown before any alert, and while the alert is open.
    fn says_gap(&self, configuration: &str) -> (bool, bool) {
        let channels = channels(configuration);
        let tenants = BTreeSet::from(["one".to_owned()]);
        let patients = [self.patient.clone()];
        let tenant = "one".to_owned();
        let team = self.team.as_ref().map(|team| (&tenant, team));
        let proofs = proven_except(&[], &channels, team);
        let found = gaps(&Known {
            channels: &channels,
            proofs: &proofs,
            now_us: 0,
            team_of: &|_| self.team.as_ref(),
            tenants: &tenants,
            patients: &patients,
        });
        let warnings = self.context.health().warnings();
        let is_untold = warnings.iter().any(|(name, _)| *name == "alerts-untold");
        (found.iter().any(|gap| gap.is_total), is_untold)
    }
}

#[tokio::test]
async fn every_alert_has_people_or_a_gap_that_is_shown() {
    let rows = TABLE.lines().skip(2).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 2 + CONFIGURATIONS.len(), "{line}");
        cells
    });
    let rows: Vec<Vec<&str>> = rows.collect();
    let mut seen = 0;
    let concerns: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    for concerns in concerns {
        for (column, configuration) in CONFIGURATIONS.iter().enumerate() {
            let ward = Ward::new(concerns, configuration).await;
            let is_down = *configuration == "mail is down";
            for (kind, priority, has_patient, rules) in KINDS {
                let row = rows.iter().find(|row| row[0] == concerns && row[1] == kind);
                let expected = row.unwrap()[2 + column];
                for rule in rules {
                    let alert = ward.alert(rule, priority, has_patient);
                    let told = ward.told(&alert, is_down).await;
                    let cell = format!("{rule}, {concerns}, {configuration}");
                    assert_eq!(told, expected, "{cell}");
                    let (is_foreseen, is_untold) = ward.says_gap(configuration);
                    assert_eq!(is_untold, expected == "-", "{cell}");
                    if expected == "-" && concerns != "not registered" {
                        assert!(is_foreseen, "{cell}");
                    }
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(seen, 5 * 5 * 9);
}

/// After the loss of the bus, its group decides about open alerts that nobody has heard of.
#[tokio::test]
async fn an_open_alert_that_a_lost_bus_carried_is_told_once() {
    let ward = Ward::new("not registered", "webhook").await;
    let store = &ward.decider.store;
    let open = ward.alert("fall", Priority::High, true);
    let over = Alert {
        id: "over".to_owned(),
        state: AlertState::Resolved.into(),
        ..open.clone()
    };
    let write = async |transitions: Vec<Alert>| {
        let batch = AlertsBatch {
            transitions,
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
    };
    write(vec![open.clone(), over.clone()]).await;
    let check = ward.context.health().check("alerts");
    for _ in 0..2 {
        assert!(ward.decider.tell_untold(&check).await);
        for (alert, notices) in [(&open, 1), (&over, 0)] {
            let found = store.notices(&Scope::Service, &alert.id).await.unwrap();
            assert_eq!(found.len(), notices, "{found:?}");
        }
        // A second observer is no news, and its revision would be another notice.
        let seen = Alert {
            revision: 2,
            ..open.clone()
        };
        write(vec![seen]).await;
    }
}
