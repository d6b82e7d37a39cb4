//! Targets and kinds of faults.

use std::fmt;

use serde::Serialize;

use crate::scenario::LINKS;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// One of [`SERVICES`](crate::scenario::SERVICES) or a gateway, by its name.
    Process(&'static str),
    Broker,
    Database,
    /// Both links of the gateway.
    Network {
        gateway: &'static str,
    },
    /// The link with this number in [`LINKS`].
    Link {
        gateway: &'static str,
        link: usize,
    },
    /// The receiver of the webhook.
    Receiver,
    /// The mail server of the people on call.
    Mailbox,
    /// The rules in force of a tenant, which are put again as a new version.
    Rules {
        tenant: &'static str,
    },
    /// The patient's device is out of the gateway's reach, and later sends everything in one
    /// request.
    Radio {
        patient: &'static str,
    },
    /// The wearer of the patient's device.
    Wearer {
        patient: &'static str,
    },
    /// The disk of the gateway's journal.
    Disk {
        gateway: &'static str,
    },
    /// The wall clock of the machine of this process.
    Clock {
        process: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL, and a start at the end of the fault.
    Kill,
    /// SIGSTOP, and SIGCONT at the end.
    Pause,
    /// Cut, refusing, or out of reach, until the end.
    Away,
    /// Changed at the beginning.
    Changed,
    /// SIGTERM, and a start at the end of the fault.
    Restart,
    /// Another patient from the end of the fault on, while readings wait in the device.
    Moved,
    /// Without a free byte, until the end.
    Full,
    /// Ahead by the step of the plan, until the end.
    Ahead,
    /// Behind by the step of the plan, until the end.
    Behind,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Process(name) => write!(f, "{name}"),
            Target::Broker => write!(f, "broker"),
            Target::Database => write!(f, "database"),
            Target::Network { gateway } => write!(f, "both links of {gateway}"),
            Target::Link { gateway, link } => write!(f, "{} of {gateway}", LINKS[*link].0),
            Target::Receiver => write!(f, "webhook receiver"),
            Target::Mailbox => write!(f, "mail server"),
            Target::Rules { tenant } => write!(f, "rules of {tenant}"),
            Target::Radio { patient } => write!(f, "sensors of {patient}"),
            Target::Wearer { patient } => write!(f, "device of {patient}"),
            Target::Disk { gateway } => write!(f, "disk of {gateway}"),
            Target::Clock { process } => write!(f, "clock of {process}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Kill => "killed",
            Kind::Pause => "paused",
            Kind::Away => "away",
            Kind::Changed => "put again",
            Kind::Restart => "restarted in turn",
            Kind::Moved => "given to another patient",
            Kind::Full => "full",
            Kind::Ahead => "ahead",
            Kind::Behind => "behind",
        })
    }
}
