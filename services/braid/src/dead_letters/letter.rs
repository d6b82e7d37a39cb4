//! One dead letter: its content, and its way back.

use std::fmt::{self, Write};
use std::str::FromStr;

use bus::{Delivery, Record, Topic, dead_letter};
use bytes::Bytes;
use contracts::text;
use ingest::readmission::{GATEWAY, Kept, UPLOADS};

use crate::process::{Failure, when};

/// Bytes of the value that `show` prints.
const SHOWN_BYTES_MAX: usize = 4096;
/// Header of a note: the id of the replayed letter.
const REPLAYED: &str = "replayed";
/// Headers that were added when the record was buried.
const OWN: [&str; 5] = [
    dead_letter::REASON,
    dead_letter::CONSUMER,
    dead_letter::TOPIC,
    dead_letter::PARTITION,
    dead_letter::OFFSET,
];

/// Position among the dead letters: `PARTITION-OFFSET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterId {
    partition: u32,
    offset: u64,
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<LetterId, String> {
        let parts = text.split_once('-');
        parts
            .and_then(|(partition, offset)| {
                Some(LetterId {
                    partition: partition.parse().ok()?,
                    offset: offset.parse().ok()?,
                })
            })
            .ok_or_else(|| "is not the id of a dead letter, such as 0-12".to_owned())
    }
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.partition, self.offset)
    }
}

#[derive(Clone, Debug)]
pub struct Letter {
    pub id: LetterId,
    pub reason: String,
    pub consumer: String,
    pub replayed: bool,
    topic: String,
    /// `PARTITION-OFFSET` in its topic.
    was_at: String,
    buried_us: i64,
    key: String,
    value: Bytes,
    /// Headers of the original record.
    headers: Vec<(String, Bytes)>,
}

pub enum Read {
    Letter(Letter),
    /// This letter was replayed.
    Note(LetterId),
}

pub fn read(delivery: Delivery) -> Read {
    let text = |name: &str| {
        let header = delivery.header(name).unwrap_or_default();
        String::from_utf8_lossy(header).into_owned()
    };
    if let Ok(id) = text(REPLAYED).parse() {
        return Read::Note(id);
    }
    let headers = delivery.headers.iter();
    Read::Letter(Letter {
        id: LetterId {
            partition: delivery.partition,
            offset: delivery.offset,
        },
        reason: text(dead_letter::REASON),
        consumer: text(dead_letter::CONSUMER),
        replayed: false,
        topic: text(dead_letter::TOPIC),
        was_at: format!(
            "{}-{}",
            text(dead_letter::PARTITION),
            text(dead_letter::OFFSET)
        ),
        buried_us: delivery.published_us,
        headers: headers
            .filter(|(name, _)| !OWN.contains(&name.as_str()))
            .cloned()
            .collect(),
        key: delivery.key,
        value: delivery.value,
    })
}

impl Letter {
    /// The original record and its topic.
    pub fn record(&self) -> Result<(Topic, Record), Failure> {
        let topic = Topic::from_name(&self.topic)
            .filter(|topic| *topic != Topic::DeadLetters)
            .ok_or_else(|| {
                let what = if self.is_upload() || self.is_message() {
                    "it goes back by `braid dead-letters readmit`"
                } else {
                    "it was not on a topic, so it cannot be replayed; `show` prints it"
                };
                Failure::other(format!("{}: `{}`: {what}", self.id, self.topic))
            })?;
        let mut record = Record::new(self.key.clone(), self.value.clone());
        record.headers = self.headers.clone();
        Ok((topic, record))
    }

    /// False for uploads and messages of the hospital, which were never on a topic.
    pub fn can_go_back(&self) -> bool {
        self.record().is_ok()
    }

    pub fn is_upload(&self) -> bool {
        self.topic == UPLOADS
    }

    /// A message of the hospital.
    pub fn is_message(&self) -> bool {
        self.topic == exchange::ORIGIN
    }

    /// The message, and the tenant that it came for.
    pub fn message(&self) -> (&[u8], String) {
        (&self.value, self.header(exchange::TENANT))
    }

    fn header(&self, name: &str) -> String {
        let found = self.headers.iter().find(|(it, _)| it == name);
        found.map_or_else(String::new, |(_, value)| {
            String::from_utf8_lossy(value).into_owned()
        })
    }

    pub fn upload(&self) -> Kept {
        Kept {
            gateway: self.header(GATEWAY),
            whole: self.value.clone(),
            arrived_us: self.buried_us,
        }
    }

    /// The patient of the record; an upload concerns the wearers of its devices.
    pub fn patient(&self) -> Option<&str> {
        let keyed = [Topic::Vitals, Topic::Alerts].map(Topic::name);
        (keyed.contains(&&*self.topic) && !self.key.is_empty()).then_some(&*self.key)
    }

    /// The origin, for the audit log.
    pub fn whence(&self) -> String {
        let gateway = if self.is_upload() {
            format!(" of gateway {}", self.upload().gateway)
        } else {
            String::new()
        };
        format!(
            "dead letter {} from {} {}{gateway}",
            self.id, self.topic, self.was_at
        )
    }

    /// The note that this letter was replayed.
    pub fn note(&self) -> Record {
        Record::new(self.key.clone(), Bytes::new()).header(REPLAYED, self.id.to_string())
    }

    pub fn line(&self) -> String {
        format!(
            "{:<8} {}  {} {}  {}: {}{}",
            self.id.to_string(),
            when(self.buried_us),
            self.topic,
            self.was_at,
            self.consumer,
            self.reason,
            if self.replayed { "  (replayed)" } else { "" },
        )
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "id": self.id.to_string(),
            "buried": when(self.buried_us),
            "topic": self.topic,
            "was_at": self.was_at,
            "key": self.key,
            "consumer": self.consumer,
            "reason": self.reason,
            "bytes": self.value.len(),
            "replayed": self.replayed,
        })
    }
}

/// The complete text, for `show`.
impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "id        {}", self.id)?;
        writeln!(f, "buried    {}", when(self.buried_us))?;
        writeln!(f, "from      {} {}", self.topic, self.was_at)?;
        writeln!(f, "consumer  {}", text::line(&self.consumer))?;
        writeln!(f, "reason    {}", text::line(&self.reason))?;
        writeln!(f, "replayed  {}", if self.replayed { "yes" } else { "no" })?;
        writeln!(f, "key       {}", text::line(&self.key))?;
        for (name, value) in &self.headers {
            let header = format!("{name}: {}", String::from_utf8_lossy(value));
            writeln!(f, "header    {}", text::line(&header))?;
        }
        write!(f, "value     {} bytes", self.value.len())?;
        for (line, bytes) in self.value[..self.value.len().min(SHOWN_BYTES_MAX)]
            .chunks(16)
            .enumerate()
        {
            let mut hex = String::new();
            for byte in bytes {
                write!(hex, "{byte:02x} ")?;
            }
            let text: String = bytes
                .iter()
                .map(|byte| {
                    if byte.is_ascii_graphic() {
                        char::from(*byte)
                    } else {
                        '.'
                    }
                })
                .collect();
            write!(f, "\n{:08x}  {hex:<48} {text}", line * 16)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn buried() -> Delivery {
        let poison = Delivery {
            topic: Topic::Vitals,
            partition: 3,
            offset: 41,
            key: "ada".into(),
            value: Bytes::from_static(b"\xff no record"),
            headers: vec![("traceparent".into(), Bytes::from_static(b"00-1-2-01"))],
            published_us: 1,
        };
        as_delivered(
            dead_letter::record(&poison, "ingest-store", "no VitalsRecord"),
            12,
        )
    }

    fn as_delivered(record: Record, offset: u64) -> Delivery {
        Delivery {
            topic: Topic::DeadLetters,
            partition: 0,
            offset,
            key: record.key,
            value: record.value,
            headers: record.headers,
            published_us: 1_700_000_000_000_000,
        }
    }

    #[test]
    fn a_record_goes_back_as_it_was_and_the_note_names_its_letter() {
        let Read::Letter(letter) = read(buried()) else {
            panic!("a letter")
        };
        assert_eq!(letter.id, "0-12".parse().unwrap());
        let (topic, record) = letter.record().unwrap();
        assert_eq!(topic, Topic::Vitals);
        let before = Record::new("ada", &b"\xff no record"[..]).header("traceparent", "00-1-2-01");
        assert_eq!(record, before);
        let Read::Note(id) = read(as_delivered(letter.note(), 13)) else {
            panic!("a note")
        };
        assert_eq!(id, letter.id);
        for part in [
            "0-12",
            "2023-11-14T22:13:20Z",
            "vitals 3-41",
            "ingest-store: no VitalsRecord",
        ] {
            assert!(letter.line().contains(part), "{}", letter.line());
        }
        assert!(letter.to_string().contains("ff 20 6e 6f"));
    }

    #[test]
    fn a_letter_without_a_topic_cannot_be_replayed() {
        let mut delivery = buried();
        delivery
            .headers
            .retain(|(name, _)| name != dead_letter::TOPIC);
        let Read::Letter(letter) = read(delivery) else {
            panic!("a letter")
        };
        assert!(letter.record().is_err());
        assert!("12".parse::<LetterId>().is_err());
    }
}
