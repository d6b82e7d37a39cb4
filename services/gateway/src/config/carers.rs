//! Settings for the people beside the gateway.

use service_kit::ConfigError;

use super::{Config, TOKEN_BYTES_MIN};
use crate::to_local_alarm;

impl Config {
    pub(super) fn validate_carers(&self) -> Result<(), ConfigError> {
        const EXAMPLE: &str = "--carer-token \"$(openssl rand -hex 16)\"";
        let reason = match (&self.carer_token, &self.sensor_token) {
            (None, _) => return Ok(()),
            (Some(_), None) => "protects nothing while sensors need no token".to_owned(),
            (Some(carer), _) if carer.expose().len() < TOKEN_BYTES_MIN => {
                format!("is shorter than {TOKEN_BYTES_MIN} characters")
            }
            (Some(carer), Some(sensor)) if carer.expose() == sensor.expose() => {
                "is the sensor token, which can write readings".to_owned()
            }
            _ => return Ok(()),
        };
        Err(ConfigError::new("carer_token", reason, EXAMPLE))
    }

    /// The ways of alerts to people in the same building.
    pub fn local_alarms(&self) -> Result<Vec<to_local_alarm::Channel>, ConfigError> {
        let ca = self.alarm_webhook_ca.as_deref();
        let (command, webhook) = (self.alarm_command.as_deref(), self.alarm_webhook.as_ref());
        to_local_alarm::channels(command, webhook, ca)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::config::CommandLine;

    #[test]
    fn people_beside_the_gateway_need_a_token_of_their_own() {
        let refused = |flags: &[&str]| {
            let line = ["gateway"].into_iter().chain(flags.iter().copied());
            let config = CommandLine::parse_from(line).config;
            config.validate_sensors().err().map(|error| error.field)
        };
        let with = |carer| refused(&["--sensor-token", "of sensors", "--carer-token", carer]);
        let field = Some("carer_token".to_owned());
        assert_eq!(with("of carers"), None);
        assert_eq!(with("of sensors"), field, "it could write readings");
        assert_eq!(with("short"), field);
        assert_eq!(refused(&["--carer-token", "of carers"]), field);
    }
}
