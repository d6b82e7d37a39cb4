//! Commands of the operator during a run.

use std::process::{Command, Stdio};

use super::settings::without_settings;
use super::{Site, SiteError, io_error};
use crate::scenario;

/// Name of the clock by which commands live.
const COMMANDS: &str = "commands";

impl Site {
    /// Puts the rules in force once more, as a new version. While the database is away the command
    /// fails, and the version before stays.
    pub fn put_rules_again(&self, tenant: &str) {
        let mut command = self.command();
        command
            .args(self.rules_again.get(tenant).into_iter().flatten())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        std::thread::spawn(move || command.status());
    }

    pub fn revoke(&self, gateway: &str, tenant: &str) -> Result<(), SiteError> {
        let own = [
            "gateways",
            "revoke",
            gateway,
            "--by=chaos",
            "--reason=stolen",
        ];
        let on_store: Vec<&str> = self.on_store.iter().map(String::as_str).collect();
        self.run(&[&own[..], &["--tenant", tenant], &on_store].concat())
    }

    /// The command that gives a patient's device to the next wearer from `from` on, in RFC 3339.
    pub fn give_to(&self, patient: &str, next: &str, from: &str) -> Command {
        let owner = scenario::patients().find(|(_, id)| *id == patient);
        let (gateway, tenant) = owner.map_or(("", ""), |(it, _)| (it.name, it.tenant));
        let device = scenario::device_of(patient);
        let mut command = self.command();
        command
            .args(["register", "--device", &device, "--gateway", gateway])
            .args(["--patient", next, "--create", "--tenant", tenant])
            .args(["--from", from])
            .args(&self.on_store)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// `braid` at the time of the run.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.braid);
        without_settings(&mut command);
        if let Some(clocks) = self
            .clocks
            .as_ref()
            .ok()
            .filter(|clocks| clocks.is_behind())
        {
            // A command at another time fails where the time matters, and says so.
            let _ = clocks.apply(COMMANDS, &mut command);
        }
        command
    }

    /// Runs `braid ARGS` to its end.
    pub(super) fn run(&self, args: &[&str]) -> Result<(), SiteError> {
        let output = self
            .command()
            .args(args)
            .output()
            .map_err(io_error(self.braid.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(SiteError::Command {
            command: args[..2.min(args.len())].join(" "),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
