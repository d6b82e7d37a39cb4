//! One result of a check.

use std::fmt;

use contracts::text;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, but a person should look at it.
    Warning,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub state: State,
    pub subject: String,
    pub says: String,
    /// Remedy. Empty if all is well.
    #[serde(rename = "do")]
    pub to_do: Option<String>,
}

impl Finding {
    pub fn ok(subject: impl Into<String>, says: impl Into<String>) -> Finding {
        Finding {
            state: State::Ok,
            subject: subject.into(),
            says: says.into(),
            to_do: None,
        }
    }

    pub fn warning(
        subject: impl Into<String>,
        says: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding {
            state: State::Warning,
            to_do: Some(to_do.into()),
            ..Finding::ok(subject, says)
        }
    }

    pub fn failed(
        subject: impl Into<String>,
        says: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding {
            state: State::Failed,
            to_do: Some(to_do.into()),
            ..Finding::ok(subject, says)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.state {
            State::Ok => "ok  ",
            State::Warning => "WARN",
            State::Failed => "FAIL",
        };
        let (subject, says) = (text::line(&self.subject), text::line(&self.says));
        write!(f, "{mark}  {subject:<12} {says}")?;
        if let Some(to_do) = &self.to_do {
            write!(f, "\n      {:<12} to do: {}", "", text::line(to_do))?;
        }
        Ok(())
    }
}
