//! A scenario from a TOML file, with the traces that it names.

use std::path::{Path, PathBuf};

use multipath::steering_rules::Document;

use super::Scenario;
use super::error::ScenarioError;
use super::examples;
use super::half::RateSpec;
use super::text::{FILE_BYTES_MAX, read_bounded};
use crate::bounds;

impl Scenario {
    /// From the text of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario: Self =
            toml::from_str(text).map_err(|error| examples::refusal(text, &error))?;
        if let Some(document) = scenario.steering.take() {
            let checked = Document::from_toml(&document.to_toml(), "steering")
                .map_err(|error| ScenarioError::Toml(error.to_string()))?;
            scenario.steer(checked);
        }
        scenario.check().map_err(|error| with_line(text, error))?;
        Ok(scenario)
    }

    /// From a TOML file, for kernel time.
    pub(crate) fn from_file_for_kernel(file: &Path) -> Result<Self, ScenarioError> {
        let scenario = Self::from_file(file)?;
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        scenario
            .check_for_kernel()
            .map_err(|error| ScenarioError::InFile {
                file: file.to_owned(),
                source: Box::new(with_line(&text, error)),
            })?;
        Ok(scenario)
    }

    /// From a TOML file.
    pub fn from_file(file: &Path) -> Result<Self, ScenarioError> {
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        let mut scenario = Self::from_toml(&text).map_err(|source| ScenarioError::InFile {
            file: file.to_owned(),
            source: Box::new(source),
        })?;
        scenario.read_traces(file.parent().unwrap_or(Path::new(".")))?;
        Ok(scenario)
    }

    /// Reads CSV traces, and looks for trace files beside the scenario's file.
    fn read_traces(&mut self, folder: &Path) -> Result<(), ScenarioError> {
        for interface in &mut self.interfaces {
            for half in [&mut interface.to_server, &mut interface.to_client] {
                match &mut half.rate {
                    RateSpec::Trace { file, .. } => *file = beside(folder, file),
                    RateSpec::Csv(file) => {
                        let file = beside(folder, file);
                        half.read_csv(&file)?;
                    }
                    RateSpec::Mbit(_) | RateSpec::Steps(_) | RateSpec::Loaded(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// The same error with the line of its field, where the text has it.
fn with_line(text: &str, error: ScenarioError) -> ScenarioError {
    match error {
        ScenarioError::Invalid { field, reason } => match bounds::line_of(text, &field) {
            Some(line) => ScenarioError::InvalidLine {
                line,
                field,
                reason,
            },
            None => ScenarioError::Invalid { field, reason },
        },
        error => error,
    }
}

/// A file named relative to the scenario's folder, or else to the working directory.
fn beside(folder: &Path, file: &Path) -> PathBuf {
    let near = folder.join(file);
    if near.exists() { near } else { file.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LINK: &str = "[[interfaces]]\nname = \"a\"\nshares = 0\n[interfaces.to_server]\n\
        rate = { mbit = 5.0 }\ndelay_ms = 10.0\n[interfaces.to_client]\nrate = { mbit = 5.0 }\n\
        delay_ms = 10.0\n";
    const MIX: &str = "[mix.page]\nobjects = 2\nbytes = 2000\nat_once = 1\n";

    /// The refusal of a file with these fields, in kernel time.
    fn refusal(fields: &str, links: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        let head = "name = \"x\"\nbytes = 1000\nlimit_s = 5.0\ndirection = \"download\"\n";
        std::fs::write(&file, format!("{head}{fields}{links}")).unwrap();
        Scenario::from_file(&file).unwrap();
        let error = Scenario::from_file_for_kernel(&file).err()?;
        Some(
            error
                .to_string()
                .replace(&*file.to_string_lossy(), "mine.toml"),
        )
    }

    #[test]
    fn bursts_that_no_link_can_have_are_refused() {
        let with = |bursts: &str| {
            let link = LINK.replace("shares = 0\n", "");
            let link = link.replace("[interfaces.to_client]", bursts);
            let head = "name = \"x\"\nbytes = 1000\nlimit_s = 5.0\n";
            let checked = Scenario::from_toml(&format!("{head}{link}"));
            checked.map(|_| ()).map_err(|error| error.to_string())
        };
        let bursts = |mean: f64, packets: f64| {
            with(&format!(
                "loss = {{ bursts = {{ mean = {mean:?}, packets = {packets:?} }} }}\n\
                 [interfaces.to_client]"
            ))
        };
        let said = bursts(0.9, 1.0).unwrap_err();
        assert_eq!(
            said,
            "line 9: interfaces[0].to_server.loss.bursts.mean: bursts of 1 packets lose at most \
             0.500 of all; for example 0.02"
        );
        assert!(bursts(0.8, 3.0).is_err());
        for (mean, packets) in [(0.5, 1.0), (0.75, 3.0), (0.02, 8.0)] {
            assert_eq!(bursts(mean, packets), Ok(()), "{mean} {packets}");
        }
    }

    #[test]
    fn what_kernel_time_lacks_is_refused_with_its_place() {
        let one = LINK.replace("shares = 0\n", "");
        for (fields, field) in [
            ("controller = \"bbr\"\n", "line 5: controller"),
            ("trunk_mbit = 5.0\n", "line 5: trunk_mbit"),
            ("competitors = [\"cubic\"]\n", "line 5: competitors"),
            (
                "[vitals]\ninterval_ms = 250\nbytes = 200\n",
                "line 5: vitals",
            ),
            (
                &format!("competitors = [\"olia\"]\n{MIX}"),
                "line 5: competitors",
            ),
        ] {
            let said = refusal(fields, &one).unwrap();
            let expected = format!("mine.toml: {field}: runs in virtual time only; for example ");
            assert!(said.starts_with(&expected), "{said}");
        }
        let shared = format!("{one}{}", LINK.replace("\"a\"", "\"b\""));
        let said = refusal("", &shared).unwrap();
        assert!(said.contains("interfaces[1].shares"), "{said}");
        let fine = [
            String::new(),
            "[buffers]\nsend_bytes = 65536\nreceive_bytes = 65536\n".to_owned(),
            format!("competitors = [\"cubic\", \"bbr\", \"newreno\"]\n{MIX}"),
        ];
        for fields in fine {
            assert_eq!(refusal(&fields, &one), None, "{fields}");
        }
    }
}
