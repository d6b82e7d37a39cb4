//! The people who acknowledge: at the page's own address, as people who are signed in, and only
//! what they were told.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use contracts::query::{AcknowledgeAlertRequest, AcknowledgeAlertResponse};
use prost::Message;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use super::{clock, http, receiver::Receiver};
use crate::{
    acknowledgements::{Acknowledgement, Wish},
    scenario::nurse_of,
};

/// Password of the accounts of the run.
pub(super) const PASSWORD: &str = "a chaos run, and nobody else";
const LOOK: Duration = Duration::from_millis(300);
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
const ACKNOWLEDGE: &str = "/braid.query.v1.QueryService/AcknowledgeAlert";
/// Bytes before a message of gRPC-web: a flag and the length.
const FRAME_BYTES: usize = 5;

/// Result of the people's work.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub accepted: Vec<Acknowledgement>,
    /// The alert was over before the person acted.
    pub over: usize,
    /// The person was told too late, or not at all.
    pub forgone: usize,
    /// Requests without an answer at the end.
    pub unanswered: Vec<String>,
}

pub(super) struct Nurses {
    pub page: SocketAddr,
    pub receiver: Arc<Receiver>,
    pub wishes: Vec<Wish>,
    /// The run is at its end: begin nothing new.
    pub is_end: Arc<AtomicBool>,
}

struct Work {
    wish: Wish,
    /// The alert and the time of the first request.
    sent: Option<(String, i64)>,
}

enum Answer {
    Accepted,
    Over,
    Unknown,
}

impl Nurses {
    pub fn start(self, deadline: Instant) -> JoinHandle<Outcome> {
        tokio::spawn(self.run(deadline))
    }

    async fn run(self, deadline: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let mut tokens = BTreeMap::new();
        let mut work: Vec<Work> = Vec::new();
        for wish in &self.wishes {
            work.push(Work {
                wish: wish.clone(),
                sent: None,
            });
        }
        while Instant::now() < deadline {
            let is_end = self.is_end.load(Ordering::Relaxed);
            let mut left = Vec::new();
            for mut one in work {
                let now_us = clock::now_us();
                if one.wish.from_us > now_us && !is_end {
                    left.push(one);
                    continue;
                }
                if one.sent.is_none() {
                    if is_end || now_us > one.wish.until_us {
                        outcome.forgone += 1;
                        continue;
                    }
                    one.sent = self.told(&one.wish).map(|id| (id, now_us));
                }
                let Some((id, sent_us)) = &one.sent else {
                    left.push(one);
                    continue;
                };
                match self.acknowledge(&mut tokens, &one.wish.patient, id).await {
                    Answer::Accepted => outcome.accepted.push(Acknowledgement {
                        patient: one.wish.patient,
                        rule: one.wish.rule,
                        since_us: one.wish.since_us,
                        id: id.clone(),
                        sent_us: *sent_us,
                        answered_us: clock::now_us(),
                    }),
                    Answer::Over => outcome.over += 1,
                    Answer::Unknown => left.push(one),
                }
            }
            work = left;
            if work.is_empty() {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        for one in work {
            match one.sent {
                Some((id, _)) => outcome.unanswered.push(format!(
                    "the acknowledgement of {id} ({} of {}) was never answered",
                    one.wish.rule, one.wish.patient
                )),
                None => outcome.forgone += 1,
            }
        }
        outcome
    }

    /// The alert of which people were told.
    fn told(&self, wish: &Wish) -> Option<String> {
        let calls = self.receiver.calls.lock();
        let told = calls.iter().find(|call| {
            let of = (call.patient.as_str(), call.rule.as_str(), call.since_us);
            of == (wish.patient.as_str(), wish.rule, wish.since_us)
        });
        told.map(|call| call.id.clone())
    }

    async fn acknowledge(
        &self,
        tokens: &mut BTreeMap<String, String>,
        patient: &str,
        id: &str,
    ) -> Answer {
        let name = nurse_of(patient);
        let Some(token) = self.token(tokens, &name).await else {
            return Answer::Unknown;
        };
        let request = AcknowledgeAlertRequest {
            id: id.to_owned(),
            note: "by a chaos run".to_owned(),
        };
        let message = request.encode_to_vec();
        let mut body = vec![0];
        body.extend((message.len() as u32).to_be_bytes());
        body.extend(message);
        let headers = [
            ("content-type", "application/grpc-web+proto"),
            ("authorization", &format!("Bearer {token}")),
        ];
        let answer = http::exchange(
            self.page,
            "POST",
            ACKNOWLEDGE,
            &headers,
            &body,
            ANSWER_WITHIN,
        )
        .await;
        let Ok((status, body)) = answer else {
            return Answer::Unknown;
        };
        if status == 401 || status == 403 {
            tokens.remove(&name);
        }
        let Some(alert) = alert(&body) else {
            return Answer::Unknown;
        };
        if alert.acknowledged_by == name {
            Answer::Accepted
        } else {
            Answer::Over
        }
    }

    async fn token(&self, tokens: &mut BTreeMap<String, String>, name: &str) -> Option<String> {
        if let Some(token) = tokens.get(name) {
            return Some(token.clone());
        }
        let credentials = json!({ "name": name, "password": PASSWORD }).to_string();
        let headers = [("content-type", "application/json")];
        let credentials = credentials.as_bytes();
        let path = "/api/token";
        let answer = http::exchange(
            self.page,
            "POST",
            path,
            &headers,
            credentials,
            ANSWER_WITHIN,
        )
        .await;
        let (_, body) = answer.ok().filter(|(status, _)| *status == 200)?;
        let body: Value = serde_json::from_slice(&body).ok()?;
        let token = body["token"].as_str()?.to_owned();
        tokens.insert(name.to_owned(), token.clone());
        Some(token)
    }
}

/// The first message of an answer; `None` if there is none, as in a refusal.
fn alert(body: &[u8]) -> Option<contracts::alerts::Alert> {
    let (head, rest) = body.split_at_checked(FRAME_BYTES)?;
    let length: [u8; 4] = head[1..].try_into().ok()?;
    let length = u32::from_be_bytes(length) as usize;
    let message = rest.get(..length).filter(|_| head[0] == 0)?;
    AcknowledgeAlertResponse::decode(message).ok()?.alert
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_no_answer() {
        let answer = AcknowledgeAlertResponse {
            alert: Some(contracts::alerts::Alert {
                id: "one".into(),
                ..Default::default()
            }),
        };
        let message = answer.encode_to_vec();
        let mut body = vec![0, 0, 0, 0, message.len() as u8];
        body.extend(&message);
        assert_eq!(alert(&body).map(|it| it.id), Some("one".to_owned()));
        assert_eq!(alert(&body[..body.len() - 1]), None);
        assert_eq!(alert(b"\x80\0\0\0\x0fgrpc-status:14\r\n"), None);
        assert_eq!(alert(b""), None);
    }
}
