#![allow(clippy::unwrap_used)]
use contracts::alerts::Alert;

use super::*;

fn queued(id: &str, alert: &str, reason: NoticeReason, priority: Priority) -> QueuedNotice {
    QueuedNotice {
        notice: Notice {
            id: id.into(),
            alert: Some(Alert {
                id: alert.into(),
                priority: priority.into(),
                ..Alert::default()
            }),
            reason: reason.into(),
            ..Notice::default()
        },
        attempts: 1,
    }
}

#[test]
fn pauses_double_up_to_a_bound() {
    assert_eq!(pause_us(1), 200_000);
    assert_eq!(pause_us(2), 400_000);
    assert_eq!(pause_us(8), 25_600_000);
    for attempts in [9, 100, u32::MAX] {
        assert_eq!(pause_us(attempts), 30_000_000);
    }
}

#[test]
fn others_leave_places_to_urgent_notices() {
    let places = Places {
        notices: 10,
        reserved: 3,
        connections: 8,
    };
    let mut in_hand = InHand::new(places);
    assert_eq!(in_hand.room(places), Some((7, Priority::Unspecified)));
    let mut put = |from: usize, to: usize, is_urgent| {
        for number in from..to {
            in_hand.notices.insert(number.to_string(), is_urgent);
        }
        in_hand.room(places)
    };
    assert_eq!(put(0, 5, false), Some((2, Priority::Unspecified)));
    assert_eq!(put(5, 7, false), Some((3, Priority::High)));
    assert_eq!(put(7, 10, true), None);
    in_hand.settled(["0".to_owned()]);
    assert_eq!(in_hand.room(places), Some((1, Priority::Unspecified)));
}

#[tokio::test]
async fn an_urgent_message_takes_a_reserved_place() {
    let places = Places {
        notices: 10,
        reserved: 3,
        connections: 4,
    };
    let in_hand = InHand::new(places);
    let lane = Lane {
        channel: Arc::new(Channel::Webhook(
            crate::to_people::webhook::Webhook::new(
                &service_kit::Secret::new("http://127.0.0.1:1/"),
                None,
                None,
                [None, None],
            )
            .unwrap(),
        )),
        public_url: None,
        report: in_hand.report.clone(),
        common: Arc::clone(&in_hand.common),
        reserved: Arc::clone(&in_hand.reserved),
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(lane.place(false).await);
    }
    let waits = tokio::time::timeout(Duration::from_millis(10), lane.place(false)).await;
    assert!(waits.is_err(), "the others are in use");
    let urgent = tokio::time::timeout(Duration::from_secs(30), lane.place(true)).await;
    assert!(urgent.is_ok_and(|place| place.is_some()));
}

#[test]
fn a_reminder_before_a_later_notice_of_its_alert_is_not_sent() {
    use NoticeReason::{News, Reminder};
    let of = |id: &str, alert: &str, reason| queued(id, alert, reason, Priority::High);
    let taken = vec![
        of("a/1", "a", News),
        of("a/r1", "a", Reminder),
        of("b/r1", "b", Reminder),
        of("a/r2", "a", Reminder),
        of("b/2", "b", News),
        of("a/r3", "a", Reminder),
    ];
    let ids = |of: Vec<QueuedNotice>| -> Vec<String> {
        of.into_iter().map(|queued| queued.notice.id).collect()
    };
    let (kept, superseded) = without_superseded(taken);
    assert_eq!(ids(kept), ["a/1", "b/2", "a/r3"]);
    assert_eq!(ids(superseded), ["a/r1", "b/r1", "a/r2"]);
}

#[test]
fn notices_of_before_a_restore_are_withheld_and_the_others_sent() {
    let of = |id: &str, created_us| {
        let mut queued = queued(id, "a", NoticeReason::News, Priority::High);
        queued.notice.created_us = created_us;
        queued
    };
    let both = || vec![of("before", 99), of("after", 100)];
    let mut delivery = Delivery {
        give_up_us: 0,
        public_url: None,
        restore: None,
    };
    assert!(delivery.take_older(&mut both(), 200).is_empty());
    delivery.restore = Some(Restore {
        restored_us: 100,
        made_us: 50,
    });
    let mut taken = both();
    let older = delivery.take_older(&mut taken, 200);
    assert_eq!((older.len(), older[0].notice.as_str()), (1, "before"));
    assert_eq!(older[0].result(), NoticeResult::Silenced);
    assert_eq!(taken, [of("after", 100)]);
}
