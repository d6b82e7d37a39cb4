#![allow(clippy::unwrap_used)]

use calendar::Zone;
use clocks::Adoption;
use contracts::alerts::{Alert, NoticeReason};

use super::*;
use crate::{
    silence::{Silence, SilenceInForce},
    team::{EXAMPLE, Team},
};

pub(super) const S: i64 = SECOND_US;
/// A Monday at 09:00 of the example's clock.
pub(super) const T0: i64 = (4 * 24 + 8) * 3600 * S;

pub(super) fn alert(id: &str, priority: Priority, state: AlertState, revision: u32) -> Alert {
    Alert {
        id: id.into(),
        patient: "ada".into(),
        rule: "fall".into(),
        priority: priority.into(),
        state: state.into(),
        revision,
        ..Alert::default()
    }
}

pub(super) fn router() -> Router {
    Router::new(Channels {
        webhook: true,
        mqtt: false,
        email: true,
        email_to: vec!["ward@example.org".into()],
        group_us: 10 * S,
        zone: Zone::default(),
    })
}

/// Changes an alert's row as the store would.
#[derive(Default)]
pub(super) struct Row(pub(super) Option<EscalationTimer>);

impl Row {
    pub(super) fn apply(&mut self, batch: &NoticesBatch) {
        for change in &batch.timers {
            match change {
                TimerChange::Set(timer) => {
                    let expected = self.0.as_ref().map_or(1, |there| there.version + 1);
                    assert_eq!(timer.version, expected);
                    self.0 = Some(timer.clone());
                }
                TimerChange::End(_) => self.0 = None,
                TimerChange::Hasten { at_us, .. } => {
                    let timer = self.0.as_mut().unwrap();
                    timer.version += 1;
                    timer.due_us = timer.due_us.map(|due_us| due_us.min(*at_us));
                }
            }
        }
    }

    pub(super) fn due_s(&self) -> Option<i64> {
        Some((self.0.as_ref()?.due_us? - T0) / S)
    }
}

pub(super) fn case<'a>(
    alert: &'a Alert,
    team: Option<&'a Team>,
    row: &'a Row,
    at_s: i64,
) -> Case<'a> {
    Case {
        alert,
        tenant: "default",
        patient_name: "Ada Example",
        team,
        silence: None,
        inhibited_by: None,
        timer: row.0.as_ref(),
        unmonitored: unmonitored(),
        last_step: LastStep::Failed,
        has_departed: false,
        now_us: T0 + at_s * S,
    }
}

fn unmonitored() -> &'static Unmonitored {
    static NONE: std::sync::LazyLock<Unmonitored> = std::sync::LazyLock::new(Unmonitored::default);
    &NONE
}

pub(super) fn ids(batch: &NoticesBatch) -> Vec<&str> {
    batch
        .notices
        .iter()
        .map(|notice| notice.id.as_str())
        .collect()
}

#[test]
fn an_alert_goes_from_the_person_to_on_call_and_reminds_until_acknowledged() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    let batch = router.on_news(case(&active, Some(&team), &row, 0));
    assert_eq!(
        ids(&batch),
        [
            "a/1/webhook",
            "a/1/email/ada@example.org",
            "a/1/email/ben@example.org"
        ]
    );
    assert_eq!(batch.notices[0].people, ["Ada Example", "Ben Example"]);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(120));

    let batch = router.on_timer(case(&active, Some(&team), &row, 125));
    assert_eq!(
        ids(&batch),
        ["a/step-2/webhook", "a/step-2/email/day@example.org"]
    );
    assert_eq!(batch.notices[0].reason(), NoticeReason::Escalation);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(425));

    let batch = router.on_timer(case(&active, Some(&team), &row, 430));
    assert_eq!(
        ids(&batch),
        [
            "a/reminder-1/webhook",
            "a/reminder-1/email/ada@example.org",
            "a/reminder-1/email/ben@example.org",
            "a/reminder-1/email/day@example.org"
        ]
    );
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(730));

    let seen = Alert {
        acknowledged_by: "Eve".into(),
        ..alert("a", Priority::High, AlertState::Acknowledged, 2)
    };
    // The timer fires first and finds the alert acknowledged.
    let batch = router.on_timer(case(&seen, Some(&team), &row, 735));
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), None);
    let batch = router.on_news(case(&seen, Some(&team), &row, 736));
    assert_eq!(batch.notices.len(), 4, "everybody who was told hears of it");
    row.apply(&batch);
    assert_eq!(row.due_s(), None);
    let over = Alert {
        state: AlertState::Resolved.into(),
        revision: 3,
        ..seen
    };
    let batch = router.on_news(case(&over, Some(&team), &row, 800));
    assert_eq!(batch.notices.len(), 4);
    row.apply(&batch);
    assert_eq!(row.0, None);
}

#[test]
fn who_is_not_there_is_not_waited_for() {
    let team = Team::from_json(EXAMPLE).unwrap();
    // A gateway, or a patient whom the team does not list, has no person. On-call is the third
    // step.
    for patient in ["", "unlisted"] {
        let (mut router, mut row) = (router(), Row::default());
        let active = Alert {
            patient: patient.into(),
            gateway: "gw".into(),
            ..alert("a", Priority::Medium, AlertState::Active, 1)
        };
        let batch = router.on_news(case(&active, Some(&team), &row, 0));
        assert_eq!(ids(&batch), ["a/1/webhook", "a/1/email/day@example.org"]);
        row.apply(&batch);
        assert_eq!(row.due_s(), Some(900), "the first reminder");
    }
    // At the end of the silence the first step reaches nobody.
    let text = EXAMPLE.replace(r#""person": ["ada"], "#, "");
    let team = Team::from_json(&text).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::Medium, AlertState::Active, 1);
    let withheld = Case {
        inhibited_by: Some("another"),
        ..case(&active, Some(&team), &row, 0)
    };
    let batch = router.on_news(withheld);
    row.apply(&batch);
    let batch = router.on_timer(case(&active, Some(&team), &row, 20));
    let expected = ["a/step-2/webhook", "a/step-2/email/ben@example.org"];
    assert_eq!(ids(&batch), expected);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(900));
}

#[test]
fn whoever_comes_on_duty_is_reminded() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    // Ten minutes before the shift change at 20:00.
    let raised_s = 11 * 3600 - 600;
    let batch = router.on_news(case(&active, Some(&team), &row, raised_s));
    row.apply(&batch);
    let mut told = Vec::new();
    for _ in 0..4 {
        let due_s = row.due_s().unwrap();
        let batch = router.on_timer(case(&active, Some(&team), &row, due_s));
        row.apply(&batch);
        let nurses = batch.notices[0].people.iter();
        let nurses = nurses.filter(|name| name.starts_with("Nurse"));
        told.push(nurses.cloned().collect::<Vec<_>>().join(", "));
    }
    let (day, both) = ("Nurse by day", "Nurse by day, Nurse by night");
    assert_eq!(told, [day, day, both, both]);
}

#[test]
fn a_latched_alert_that_nobody_was_told_of_begins_its_escalation() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let latched = alert("a", Priority::High, AlertState::Latched, 2);
    let first = router.on_news(case(&latched, Some(&team), &row, 0));
    row.apply(&first);
    assert!(ids(&first).contains(&"a/2/email/ada@example.org"));
    assert!(row.due_s().is_some(), "a person must answer");
    // Told by its first revision, its end calls nobody again.
    let again = alert("a", Priority::High, AlertState::Latched, 3);
    let batch = router.on_news(case(&again, Some(&team), &row, 1));
    assert_eq!(ids(&batch), ["a/3/webhook"]);
}

#[test]
fn a_report_of_what_is_over_is_told_once() {
    let team = Team::from_json(EXAMPLE).unwrap();
    for team in [Some(&team), None] {
        let row = Row::default();
        let report = Alert {
            rule: crate::unheard::RULE.into(),
            ..alert("a", Priority::Medium, AlertState::Resolved, 1)
        };
        let batch = router().on_news(case(&report, team, &row, 0));
        assert!(batch.timers.is_empty(), "nothing escalates");
        assert_eq!(batch.notices.len(), ids(&batch).len());
        let mails = batch.notices.iter().filter(|it| it.channel == EMAIL);
        assert!(mails.count() > 0, "{:?}", ids(&batch));
        let again = router().on_news(case(&report, team, &row, 9));
        assert_eq!(ids(&again), ids(&batch), "the same notices");
    }
}

#[test]
fn a_silence_is_written_down_and_when_it_ends_the_first_step_is_taken() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let silence = SilenceInForce {
        id: "s-1".into(),
        tenant: "default".into(),
        author: "Eve".into(),
        until_us: T0 + 600 * S,
        silence: Silence {
            patient: "ada".into(),
            rule: String::new(),
        },
    };
    for team in [Some(&team), None] {
        let (mut router, mut row) = (router(), Row::default());
        let active = alert("a", Priority::High, AlertState::Active, 1);
        let silent = Case {
            silence: Some(&silence),
            ..case(&active, team, &row, 0)
        };
        let batch = router.on_news(silent);
        assert_eq!(batch.outcomes.len(), batch.notices.len());
        assert!(!batch.notices.is_empty());
        for outcome in &batch.outcomes {
            assert_eq!(outcome.result(), NoticeResult::Silenced);
            assert_eq!(outcome.detail, "s-1 by Eve");
        }
        row.apply(&batch);
        assert_eq!(row.due_s(), Some(10), "it may be ended early");
        let batch = router.on_timer(Case {
            silence: Some(&silence),
            ..case(&active, team, &row, 595)
        });
        assert!(batch.notices.is_empty());
        row.apply(&batch);
        assert_eq!(row.due_s(), Some(600));
        let batch = router.on_timer(case(&active, team, &row, 601));
        assert!(batch.outcomes.is_empty());
        let first = if team.is_some() {
            "a/step-1/email/ada@example.org"
        } else {
            "a/step-1/email/ward@example.org"
        };
        assert_eq!(ids(&batch)[..2], ["a/step-1/webhook", first]);
        row.apply(&batch);
        // The delays of the steps count from the alert.
        assert_eq!(row.due_s(), Some(if team.is_some() { 601 } else { 901 }));
    }
}

#[test]
fn what_another_alert_says_better_waits() {
    let mut row = Row::default();
    let mut router = router();
    let active = alert("a", Priority::Medium, AlertState::Active, 1);
    fn inhibited(case: Case<'_>) -> Case<'_> {
        Case {
            inhibited_by: Some("gateway-alert"),
            ..case
        }
    }
    let batch = router.on_news(inhibited(case(&active, None, &row, 0)));
    assert!(
        batch
            .outcomes
            .iter()
            .all(|outcome| outcome.result() == NoticeResult::Inhibited)
    );
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(10));
    let batch = router.on_timer(inhibited(case(&active, None, &row, 31)));
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(41));
    let batch = router.on_timer(case(&active, None, &row, 62));
    assert_eq!(batch.notices.len(), 2);
    assert!(batch.outcomes.is_empty());
}

#[test]
fn alerts_that_follow_each_other_go_as_one_unless_more_urgent() {
    let mut router = router();
    let mut due_s = |id: &str, priority, state, at_s| {
        let alert = alert(id, priority, state, 1);
        let batch = router.on_news(case(&alert, None, &Row::default(), at_s));
        let mail = batch
            .notices
            .iter()
            .find(|notice| notice.channel == EMAIL)
            .unwrap();
        let hook = batch
            .notices
            .iter()
            .find(|notice| notice.channel == WEBHOOK)
            .unwrap();
        assert_eq!(hook.due_us, T0 + at_s * S, "machines group for themselves");
        (mail.due_us - T0) / S
    };
    use AlertState::{Active, Resolved};
    assert_eq!(
        due_s("a", Priority::Medium, Active, 0),
        0,
        "the first at once"
    );
    assert_eq!(due_s("b", Priority::Medium, Active, 1), 10);
    assert_eq!(due_s("c", Priority::Low, Active, 9), 10);
    assert_eq!(due_s("a", Priority::Medium, Resolved, 9), 10);
    assert_eq!(due_s("d", Priority::High, Active, 9), 9, "more urgent");
    assert_eq!(due_s("e", Priority::High, Active, 10), 19);
    assert_eq!(due_s("f", Priority::Low, Active, 19), 19, "a new window");
}

#[test]
fn a_clock_that_is_set_back_delays_no_escalation() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    // Three hours ahead; the step is due after two minutes.
    let ahead_s = 3 * 3600;
    let batch = router.on_news(case(&active, Some(&team), &row, ahead_s));
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(ahead_s + 120));
    let timer = row.0.clone().unwrap();
    assert_eq!(set_anew(&timer, T0 + (ahead_s - 5) * S), None, "no step");
    let mut anew = NoticesBatch::default();
    anew.timers.extend(set_anew(&timer, T0));
    row.apply(&anew);
    assert_eq!(row.due_s(), Some(120));
    assert_eq!(set_anew(row.0.as_ref().unwrap(), T0), None);
    let batch = router.on_timer(case(&active, Some(&team), &row, 121));
    assert_eq!(batch.notices[0].id, "a/step-2/webhook");
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(421), "then reminders");
    // It does not delay the next letter of the patient either.
    let other = alert("b", Priority::High, AlertState::Active, 1);
    let batch = router.on_news(case(&other, Some(&team), &Row::default(), 10));
    let letters = batch
        .notices
        .iter()
        .filter(|notice| notice.channel == EMAIL);
    assert!(letters.clone().all(|notice| notice.due_us == T0 + 10 * S));
    assert!(letters.count() > 0);
}

#[test]
fn a_timer_moves_with_a_step_of_the_clock_once() {
    const HOUR: i64 = 3600 * S;
    let set_us = 100 * HOUR;
    let progress = Progress {
        opened_us: set_us,
        set_us,
        steps: 1,
        ..Progress::default()
    };
    let timer = |progress: &Progress, due_us| EscalationTimer {
        alert: "a".into(),
        version: 1,
        due_us: Some(due_us),
        state: write(progress),
    };
    for by_us in [HOUR, -HOUR, 90 * S] {
        let step = Adoption {
            number: 1,
            from_us: set_us + 60 * S,
            to_us: set_us + 60 * S + by_us,
        };
        let before = timer(&progress, set_us + 120 * S);
        let Some(TimerChange::Set(after)) = moved(&before, step) else {
            panic!("not moved by {by_us}");
        };
        // Before and after, 60 s are left.
        assert_eq!(after.due_us, Some(step.to_us + 60 * S));
        assert_eq!(read(&after).opened_us, set_us + by_us);
        // Another member adopts the same step some seconds later.
        let again = Adoption {
            number: 7,
            from_us: step.from_us + 30 * S,
            to_us: step.to_us + 30 * S,
        };
        assert_eq!(moved(&after, again), None, "{by_us}");
    }
    let later = Progress {
        set_us: set_us + 2 * HOUR,
        ..progress
    };
    let step = Adoption {
        number: 1,
        from_us: set_us,
        to_us: set_us + HOUR,
    };
    assert_eq!(moved(&timer(&later, set_us + 3 * HOUR), step), None);
}

#[test]
fn a_name_goes_only_where_the_policy_lets_it() {
    let names = |json: &str| {
        let text = EXAMPLE.replacen(
            r#"{"email": "initials", "webhook": "id", "mqtt": "id"}"#,
            json,
            1,
        );
        let team = Team::from_json(&text).unwrap();
        let row = Row::default();
        let active = alert("a", Priority::High, AlertState::Active, 1);
        let batch = router().on_news(case(&active, Some(&team), &row, 0));
        let mut names: Vec<(String, String)> = batch
            .notices
            .iter()
            .map(|notice| (notice.channel.clone(), notice.patient_name.clone()))
            .collect();
        assert!(
            batch
                .notices
                .iter()
                .all(|it| it.time_zone == "Europe/Berlin")
        );
        names.sort_unstable();
        names.dedup();
        names
    };
    let expected = |email: &str, webhook: &str| {
        [("email", email), ("webhook", webhook)]
            .map(|(channel, name)| (channel.to_owned(), name.to_owned()))
    };
    assert_eq!(names("{}"), expected("", ""));
    assert_eq!(names(r#"{"email": "full"}"#), expected("Ada Example", ""));
    assert_eq!(
        names(r#"{"email": "initials", "webhook": "full"}"#),
        expected("A. E.", "Ada Example")
    );
}
