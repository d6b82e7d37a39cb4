//! An escalation goes on until somebody acknowledges or the episode ends.
#![allow(clippy::unwrap_used)]

use contracts::alerts::{Alert, Notice, NoticeOutcome, NoticeReason};

use super::{
    tests::{Row, S, T0, alert, case, ids, router},
    *,
};
use crate::team::{EXAMPLE, Team};

#[test]
fn reminders_grow_rarer_and_do_not_end() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    let first = router.on_news(case(&active, Some(&team), &row, 0));
    row.apply(&first);
    let mut told_at_s = Vec::new();
    for _ in 0..500 {
        let due_s = row.due_s().unwrap();
        let batch = router.on_timer(case(&active, Some(&team), &row, due_s));
        assert!(!batch.notices.is_empty());
        row.apply(&batch);
        told_at_s.push(due_s);
    }
    let pauses: Vec<i64> = told_at_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses[..24], [300; 24]);
    assert_eq!(pauses[24..29], [600, 1200, 2400, 3600, 3600]);
    assert_eq!(pauses.last(), Some(&3600));
    assert!(is_unanswered(row.0.as_ref().unwrap()));
    let over = Alert {
        state: AlertState::Resolved.into(),
        revision: 2,
        ..active
    };
    let batch = router.on_news(case(&over, Some(&team), &row, told_at_s[499] + 1));
    row.apply(&batch);
    assert_eq!(row.0, None);
}

#[test]
fn a_plan_without_an_interval_reminds_each_hour_except_at_low_priority() {
    let text = EXAMPLE
        .replace("\"remind_every_s\": 14400", "\"remind_every_s\": 0")
        .replace("\"remind_every_s\": 900", "\"remind_every_s\": 0")
        .replace("\"remind_every_s\": 300", "\"remind_every_s\": 0");
    let team = Team::from_json(&text).unwrap();
    for (priority, expected) in [
        (Priority::High, Some(3600)),
        (Priority::Medium, Some(3600)),
        (Priority::Low, None),
    ] {
        let (mut router, mut row) = (router(), Row::default());
        let active = alert("a", priority, AlertState::Active, 1);
        let batch = router.on_news(case(&active, Some(&team), &row, 0));
        row.apply(&batch);
        let mut at_s = 0;
        while let Some(due_s) = row.due_s().filter(|due_s| *due_s < 3600) {
            at_s = due_s;
            let batch = router.on_timer(case(&active, Some(&team), &row, at_s));
            row.apply(&batch);
        }
        assert_eq!(
            row.due_s(),
            expected.map(|after_s| at_s + after_s),
            "{priority:?}"
        );
    }
}

#[test]
fn a_low_alert_goes_to_the_ward_unless_the_patient_cares_for_themself() {
    let low = alert("a", Priority::Low, AlertState::Active, 1);
    let told = |text: &str, patient: &str| {
        let team = Team::from_json(text).unwrap();
        let active = Alert {
            patient: patient.into(),
            ..low.clone()
        };
        let batch = router().on_news(case(&active, Some(&team), &Row::default(), 0));
        let mail = batch.notices.iter().filter(|it| it.channel == EMAIL);
        let mail: Vec<String> = mail.map(|it| it.recipient.clone()).collect();
        mail.join(" ")
    };
    assert_eq!(told(EXAMPLE, "ada"), "ada@example.org day@example.org");
    assert_eq!(told(EXAMPLE, "unlisted"), "day@example.org");
    let own = EXAMPLE.replace("\"group\": \"copd\"", "\"self_care\": true");
    assert_eq!(told(&own, "ada"), "ada@example.org");
    // A patient who cannot be reached does not care for themself.
    let without = own.replace(", \"email\": \"ada@example.org\"", "");
    assert_eq!(told(&without, "ada"), "day@example.org");
    let nobody = own.replace("\"person\": [\"ada\"]", "\"person\": []");
    assert_eq!(told(&nobody, "ada"), "day@example.org");
    // A team may choose to tell nobody of low alerts.
    let silent = EXAMPLE.replace(
        r#""steps": [{"after_s": 0, "tell": ["person", "on-call"]}]"#,
        r#""steps": []"#,
    );
    let team = Team::from_json(&silent).unwrap();
    let mut router = router();
    let batch = router.on_news(case(&low, Some(&team), &Row::default(), 0));
    assert_eq!(ids(&batch), ["a/1/webhook"]);
    assert!(batch.timers.is_empty() && router.untold().0 == 0);
}

#[test]
fn without_a_team_the_ward_hears_of_it_until_somebody_acknowledges() {
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    let batch = router.on_news(case(&active, None, &row, 0));
    assert_eq!(ids(&batch), ["a/1/webhook", "a/1/email/ward@example.org"]);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(300));
    let batch = router.on_timer(case(&active, None, &row, 300));
    assert_eq!(
        ids(&batch),
        [
            "a/reminder-1/webhook",
            "a/reminder-1/email/ward@example.org"
        ]
    );
    row.apply(&batch);
    let seen = Alert {
        state: AlertState::Acknowledged.into(),
        acknowledged_by: "Eve".into(),
        revision: 2,
        ..active.clone()
    };
    let batch = router.on_news(case(&seen, None, &row, 310));
    assert_eq!(batch.notices.len(), 2);
    row.apply(&batch);
    assert_eq!(row.due_s(), None);
    let backfill = Alert {
        backfill: true,
        ..active
    };
    let batch = router.on_news(case(&backfill, None, &Row::default(), 0));
    assert_eq!(batch, NoticesBatch::default());
}

fn by_mail_alone(email_to: &[&str]) -> Router {
    Router::new(Channels {
        email: true,
        email_to: email_to.iter().map(|&it| it.to_owned()).collect(),
        ..Channels::default()
    })
}

#[test]
fn on_call_people_without_an_address_are_no_step() {
    // The nurse of the day has no address, so the third step is taken with the second.
    let text = EXAMPLE
        .replace(", \"email\": \"ben@example.org\"", "")
        .replace(", \"email\": \"day@example.org\"", "");
    let team = Team::from_json(&text).unwrap();
    let (mut router, mut row) = (by_mail_alone(&["ward@example.org"]), Row::default());
    let active = alert("a", Priority::Medium, AlertState::Active, 1);
    let batch = router.on_news(case(&active, Some(&team), &row, 0));
    assert_eq!(ids(&batch), ["a/1/email/ada@example.org"]);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(300));
    // No step is left that reaches a person: the recipients without a team stand in.
    let batch = router.on_timer(case(&active, Some(&team), &row, 300));
    assert_eq!(ids(&batch), ["a/step-3/email/ward@example.org"]);
    assert_eq!(batch.notices[0].people, ["Ben Example", "Nurse by day"]);
    row.apply(&batch);
    // They are reminded with the others, and hear of the end.
    assert_eq!(row.due_s(), Some(1200));
    let batch = router.on_timer(case(&active, Some(&team), &row, 1200));
    let expected = [
        "a/reminder-1/email/ada@example.org",
        "a/reminder-1/email/ward@example.org",
    ];
    assert_eq!(ids(&batch), expected);
    row.apply(&batch);
    let over = Alert {
        state: AlertState::Resolved.into(),
        revision: 2,
        ..active
    };
    let batch = router.on_news(case(&over, Some(&team), &row, 1300));
    assert_eq!(batch.notices.len(), 2);
}

#[test]
fn an_alert_that_reaches_nobody_is_tried_again_until_somebody_is_there() {
    let names = ["ada", "ben", "day", "night"];
    let text = names.iter().fold(EXAMPLE.to_owned(), |text, name| {
        text.replace(&format!(", \"email\": \"{name}@example.org\""), "")
    });
    let nobody = Team::from_json(&text).unwrap();
    let (mut router, mut row) = (by_mail_alone(&[]), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    let batch = router.on_news(case(&active, Some(&nobody), &row, 0));
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(60));
    assert_eq!(router.untold(), (1, Some("a")));
    let batch = router.on_timer(case(&active, Some(&nobody), &row, 60));
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(120));
    // A complete team is put in force, and the plan begins with its first step.
    let team = Team::from_json(EXAMPLE).unwrap();
    let batch = router.on_timer(case(&active, Some(&team), &row, 120));
    let expected = [
        "a/step-1/email/ada@example.org",
        "a/step-1/email/ben@example.org",
    ];
    assert_eq!(ids(&batch), expected);
    assert_eq!(router.untold(), (0, None));
}

#[test]
fn a_step_that_failed_is_followed_by_the_next_at_once() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::Medium, AlertState::Active, 1);
    let batch = router.on_news(case(&active, Some(&team), &row, 0));
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(300));
    let hasten = |row: &mut Row, at_s: i64| {
        let hasten = TimerChange::Hasten {
            timer: "a".into(),
            at_us: T0 + at_s * S,
        };
        let batch = NoticesBatch {
            timers: vec![hasten],
            ..NoticesBatch::default()
        };
        row.apply(&batch);
        assert!(is_hastened(row.0.as_ref().unwrap()));
    };
    // Another notice of the step is under way.
    hasten(&mut row, 5);
    let at = |last_step, row: &'_ Row, router: &mut Router, at_s| {
        router.on_timer(Case {
            last_step,
            ..case(&active, Some(&team), row, at_s)
        })
    };
    let batch = at(LastStep::UnderWay, &row, &mut router, 5);
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(6));
    // It was delivered, so the plan keeps its time.
    let batch = at(LastStep::Delivered, &row, &mut router, 6);
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(300));
    assert!(!is_hastened(row.0.as_ref().unwrap()));
    // All have failed.
    hasten(&mut row, 7);
    let batch = at(LastStep::Failed, &row, &mut router, 7);
    assert_eq!(ids(&batch)[0], "a/step-2/webhook");
    row.apply(&batch);
    hasten(&mut row, 8);
    let batch = at(LastStep::Failed, &row, &mut router, 8);
    assert_eq!(ids(&batch)[0], "a/step-3/webhook");
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(908));
    // Then those who are told without a team, once. Reminders keep their time.
    hasten(&mut row, 9);
    let batch = at(LastStep::Failed, &row, &mut router, 9);
    let expected = ["a/step-4/webhook", "a/step-4/email/ward@example.org"];
    assert_eq!(ids(&batch), expected);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(909));
    hasten(&mut row, 10);
    let batch = at(LastStep::Failed, &row, &mut router, 10);
    assert!(batch.notices.is_empty());
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(909));
}

#[test]
fn a_step_has_failed_when_no_notice_of_it_was_delivered() {
    let record = |reason: NoticeReason, created_us: i64, result: Option<NoticeResult>| {
        let notice = Notice {
            tenant: "one".into(),
            reason: reason.into(),
            created_us,
            ..Notice::default()
        };
        contracts::alerts::NoticeRecord {
            notice: Some(notice),
            outcome: result.map(|result| NoticeOutcome {
                result: result.into(),
                ..NoticeOutcome::default()
            }),
        }
    };
    use NoticeReason::{Escalation, News, Reminder};
    use NoticeResult::{Delivered, GivenUp, Inhibited};
    let judged = |records: &[_], at_s: i64| last_step(records, "one", at_s * S);
    let refused = record(Escalation, S, Some(GivenUp));
    let first = record(News, 0, Some(Delivered));
    let reminder = record(Reminder, 2 * S, Some(Delivered));
    let inhibited = record(Escalation, 3 * S, Some(Inhibited));
    let records = [first, refused.clone(), reminder, inhibited];
    assert_eq!(
        judged(&records, 4),
        LastStep::Failed,
        "the first is not the last"
    );
    let beside = record(Escalation, S, None);
    let records = [refused.clone(), beside];
    assert_eq!(judged(&records, 4), LastStep::UnderWay);
    // A notice that waits for an hour does not count as under way.
    assert_eq!(judged(&records, 3600), LastStep::Failed);
    let records = [refused, record(Escalation, S, Some(Delivered))];
    assert_eq!(judged(&records, 4), LastStep::Delivered);
    assert_eq!(last_step(&records, "two", 4 * S), LastStep::Failed);
}

#[test]
fn an_alert_of_several_tenants_is_an_escalation_of_each() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let mut router = router();
    let active = Alert {
        patient: String::new(),
        rule: vitals::silence::PIPELINE.into(),
        ..alert("a", Priority::Medium, AlertState::Active, 1)
    };
    for tenant in ["one", "two"] {
        let mut row = Row::default();
        let batch = router.on_news(Case {
            tenant,
            ..case(&active, Some(&team), &row, 0)
        });
        let expected = [
            format!("a/1@{tenant}/webhook"),
            format!("a/1@{tenant}/email/day@example.org"),
        ];
        assert_eq!(ids(&batch), expected);
        assert!(batch.notices.iter().all(|it| it.tenant == tenant));
        row.apply(&batch);
        assert_eq!(row.0.as_ref().unwrap().alert, format!("a@{tenant}"));
        let over = Alert {
            state: AlertState::Resolved.into(),
            revision: 2,
            ..active.clone()
        };
        let batch = router.on_news(Case {
            tenant,
            ..case(&over, Some(&team), &row, 60)
        });
        assert_eq!(batch.notices.len(), 2);
        let end = TimerChange::End(format!("a@{tenant}"));
        assert_eq!(batch.timers, [end]);
    }
}

#[test]
fn an_acknowledgement_that_is_taken_back_is_told_and_the_escalation_goes_on() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let (mut router, mut row) = (router(), Row::default());
    let active = alert("a", Priority::High, AlertState::Active, 1);
    row.apply(&router.on_news(case(&active, Some(&team), &row, 0)));
    let seen = Alert {
        acknowledged_by: "Eve".into(),
        ..alert("a", Priority::High, AlertState::Acknowledged, 2)
    };
    row.apply(&router.on_news(case(&seen, Some(&team), &row, 30)));
    assert_eq!(row.due_s(), None);
    let again = alert("a", Priority::High, AlertState::Active, 3);
    let batch = router.on_news(case(&again, Some(&team), &row, 38));
    assert_eq!(
        ids(&batch),
        [
            "a/3/webhook",
            "a/3/email/ada@example.org",
            "a/3/email/ben@example.org"
        ]
    );
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(120), "the step comes when it was due");
    // A later revision is no second withdrawal.
    let later = alert("a", Priority::High, AlertState::Latched, 4);
    let batch = router.on_news(case(&later, Some(&team), &row, 60));
    assert_eq!(ids(&batch), ["a/4/webhook"]);
    row.apply(&batch);
    assert_eq!(row.due_s(), Some(120));
}

#[test]
fn no_person_hears_of_a_patient_who_has_departed_and_machines_hear_of_the_end() {
    let mut row = Row::default();
    let mut router = router();
    let raised = alert("a", Priority::High, AlertState::Active, 1);
    row.apply(&router.on_news(case(&raised, None, &row, 0)));
    assert!(row.0.is_some(), "people wait for it");
    fn departed(case: Case<'_>) -> Case<'_> {
        Case {
            has_departed: true,
            ..case
        }
    }
    let batch = router.on_timer(departed(case(&raised, None, &row, 31)));
    assert!(batch.notices.is_empty(), "{batch:?}");
    row.apply(&batch);
    assert!(row.0.is_none(), "nobody is reminded");
    let late = alert("b", Priority::High, AlertState::Active, 1);
    let batch = router.on_news(departed(case(&late, None, &row, 40)));
    assert_eq!(batch, NoticesBatch::default());
    let ended = alert("a", Priority::High, AlertState::Resolved, 2);
    let batch = router.on_news(departed(case(&ended, None, &row, 41)));
    let channels: Vec<&str> = batch.notices.iter().map(|it| &*it.channel).collect();
    assert!(channels.contains(&WEBHOOK), "{channels:?}");
    assert!(!channels.contains(&EMAIL), "{channels:?}");
}
