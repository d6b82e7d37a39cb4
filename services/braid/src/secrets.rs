//! `braid secrets`: certificates and passwords of an installation of separate services, so that no
//! configuration file contains a secret.
//!
//! The authority and the passwords are made once and stay in a folder that only this command uses.
//! Each recipient gets its own folder with certificate, key and authority. `braid.toml` has a
//! service's passwords, and plain files have those of other programs. Every run issues certificates
//! anew; services reload them without a restart.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Subcommand;
use service_kit::tls::PeerId;
use service_kit::tls::authority::LocalAuthority;
use service_kit::{ConfigError, Secret};

use crate::password;
use crate::process::Failure;

/// Names of all passwords; at least two recipients know each.
const STORE: &str = "store";
const STORE_OWNER: &str = "store-owner";
const STORE_READER: &str = "store-reader";
const ADMINISTRATOR: &str = "administrator";
const SENSORS: &str = "sensors";
const GRAFANA: &str = "grafana";
const PASSWORDS: [&str; 6] = [
    STORE,
    STORE_OWNER,
    STORE_READER,
    ADMINISTRATOR,
    SENSORS,
    GRAFANA,
];

/// Services that gateways connect to, and that must trust the authority for gateways. No other
/// service does.
const MEET_GATEWAYS: [&str; 4] = ["proxy", "ingest", "path-telemetry", "envoy"];
/// Key of the general authority in installations that are older than the authority for gateways.
const KEY_OF_ALL: &str = "ca.key";

/// The secrets of a recipient besides certificate and authority.
struct Given {
    name: &'static str,
    /// Settings in its table of `braid.toml`, each with its password.
    settings: &'static [(&'static str, &'static str)],
    /// Passwords in separate files.
    files: &'static [&'static str],
}

const RECIPIENTS: [Given; 14] = [
    given("proxy", &[], &[]),
    given("ingest", &[("store_password", STORE)], &[]),
    given("alerting", &[("store_password", STORE)], &[]),
    given("path-telemetry", &[("store_password", STORE)], &[]),
    given("exchange", &[("store_password", STORE)], &[]),
    // Also as a file: `braid gateways` beside the dashboard reads it from the environment.
    given("dashboard", &[("store_password", STORE)], &[STORE]),
    given(
        "setup",
        &[("store_password", STORE), ("admin_password", ADMINISTRATOR)],
        &[],
    ),
    given("gateway", &[("sensor_token", SENSORS)], &[]),
    given("swarm", &[("sensor_token", SENSORS)], &[]),
    given("trial", &[("store_password", STORE)], &[]),
    given("envoy", &[], &[]),
    given("kafka", &[], &[]),
    given("timescaledb", &[], &[STORE, STORE_OWNER, STORE_READER]),
    given("grafana", &[], &[STORE_READER, GRAFANA]),
];

const fn given(
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    files: &'static [&'static str],
) -> Given {
    Given {
        name,
        settings,
        files,
    }
}

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Make missing secrets and distribute them.
    #[command(
        after_help = "Examples:\n  braid secrets make --authority /authority --out /secrets \\\n      --for ingest:65532 --for gateway:65532\n  braid secrets make --authority /authority --out /secrets \\\n      --for envoy --page-hosts ward.example.org,10.1.2.3"
    )]
    Make {
        /// Folder of the authority and of the passwords.
        #[arg(long, value_name = "DIR", env = "BRAID_AUTHORITY")]
        authority: PathBuf,
        /// Folder for the recipients' folders.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// A recipient, and the user that owns its files; once for each.
        #[arg(long = "for", value_name = "NAME[:UID]", required = true)]
        recipients: Vec<Recipient>,
        /// The recipient that issues certificates to gateways and gets the key of their authority:
        /// `dashboard`. By default none.
        #[arg(long, value_name = "NAME", env = "BRAID_ISSUING", value_parser = ["dashboard"])]
        issuing: Option<String>,
        /// Name in the certificate of the gateway.
        #[arg(long, value_name = "ID", default_value = "gw-1")]
        gateway: String,
        /// Names and addresses of the page, for Envoy's certificate; `envoy` and localhost are
        /// always included.
        #[arg(
            long,
            value_name = "HOST,...",
            env = "BRAID_PAGE_HOSTS",
            default_value = ""
        )]
        page_hosts: Hosts,
    },
    /// Print a password, such as the administrator's.
    #[command(after_help = "Example:\n  braid secrets show administrator --authority /authority")]
    Show {
        /// Name of the password.
        #[arg(value_parser = PASSWORDS)]
        name: String,
        /// Folder of the authority and of the passwords.
        #[arg(long, value_name = "DIR", env = "BRAID_AUTHORITY")]
        authority: PathBuf,
    },
}

#[derive(Clone, Debug)]
pub struct Recipient {
    name: String,
    uid: Option<u32>,
}

impl FromStr for Recipient {
    type Err = String;

    fn from_str(text: &str) -> Result<Recipient, String> {
        let (name, uid) = match text.split_once(':') {
            Some((name, uid)) => {
                let uid = uid
                    .parse()
                    .map_err(|_| format!("{uid:?} is not a user id"))?;
                (name, Some(uid))
            }
            None => (text, None),
        };
        if !RECIPIENTS.iter().any(|given| given.name == name) {
            let names = RECIPIENTS.map(|given| given.name).join(", ");
            return Err(format!(
                "{name:?} is not a recipient; recipients are {names}"
            ));
        }
        Ok(Recipient {
            name: name.to_owned(),
            uid,
        })
    }
}

/// Names and addresses, separated by commas.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hosts, String> {
        let hosts = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        hosts
            .map(
                |host| match is_name(host) || host.parse::<IpAddr>().is_ok() {
                    true => Ok(host.to_owned()),
                    false => Err(format!("{host:?} is neither a name nor an address")),
                },
            )
            .collect::<Result<_, _>>()
            .map(Hosts)
    }
}

/// Labels of letters, digits and inner dashes; the first may be `*`. Digits alone would be a
/// mistyped address.
fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|it| it.is_ascii_alphanumeric() || it == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let rest = host.strip_prefix("*.").unwrap_or(host);
    host.len() <= 253
        && rest.split('.').all(is_label)
        && rest.bytes().any(|it| it.is_ascii_alphabetic())
}

impl SecretsCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            SecretsCommand::Make {
                authority,
                out,
                recipients,
                issuing,
                gateway,
                page_hosts,
            } => {
                let made = LocalAuthority::open_or_create(&authority).map_err(Failure::other)?;
                let of_gateways = LocalAuthority::open_or_create_for_gateways(&authority)
                    .map_err(Failure::other)?;
                for recipient in &recipients {
                    let folder = out.join(&recipient.name);
                    let issues = issuing.as_deref() == Some(&recipient.name);
                    hand_over(&of_gateways, &folder, issues)?;
                    let from = (&made, &of_gateways, &*authority);
                    hand_out(from, &folder, recipient, &gateway, &page_hosts)?;
                    println!("{}", folder.display());
                }
                Ok(())
            }
            SecretsCommand::Show { name, authority } => {
                let file = password_file(&authority, &name);
                if !file.exists() {
                    return Err(Failure::Config(ConfigError::new(
                        "authority",
                        format!("{} holds no passwords yet", authority.display()),
                        "braid secrets make --authority DIR --out DIR --for ingest",
                    )));
                }
                println!("{}", password::kept_in(&file)?.expose());
                Ok(())
            }
        }
    }
}

fn password_file(authority: &Path, name: &str) -> PathBuf {
    authority.join(format!("{name}.password"))
}

/// Gives the authority for gateways to the recipient that issues; other recipients lose their copy.
fn hand_over(of_gateways: &LocalAuthority, folder: &Path, issues: bool) -> Result<(), Failure> {
    let (certificate, key) = of_gateways.own_files();
    let mut away = vec![folder.join(KEY_OF_ALL)];
    for file in [certificate, key] {
        let copy = file.file_name().map(|name| folder.join(name));
        let copy = copy.ok_or_else(|| Failure::other(file.display()))?;
        if issues {
            fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
            let pem = fs::read(&file).map_err(|error| failed(&file, &error))?;
            write_private(&copy, &pem)?;
        } else {
            away.push(copy);
        }
    }
    for file in away.iter().filter(|file| file.exists()) {
        fs::remove_file(file).map_err(|error| failed(file, &error))?;
    }
    Ok(())
}

fn hand_out(
    (made, of_gateways, authority): (&LocalAuthority, &LocalAuthority, &Path),
    folder: &Path,
    recipient: &Recipient,
    gateway: &str,
    page_hosts: &Hosts,
) -> Result<(), Failure> {
    let given = RECIPIENTS
        .iter()
        .find(|given| given.name == recipient.name)
        .ok_or_else(|| Failure::other(format!("{} gets nothing", recipient.name)))?;
    let id = match given.name {
        "gateway" => PeerId::gateway(store::DEFAULT_TENANT, gateway),
        "trial" => crate::trial::gateway(),
        name => PeerId::service(name),
    };
    let hosts: &[String] = match given.name {
        "envoy" => &page_hosts.0,
        _ => &[],
    };
    let files = made.issue_in(folder, &id, hosts).map_err(Failure::other)?;
    if MEET_GATEWAYS.contains(&given.name) {
        made.introduce(of_gateways, &files)
            .map_err(Failure::other)?;
    }
    let password = |name: &str| password::kept_in(&password_file(authority, name));
    if !given.settings.is_empty() {
        let mut text = format!("[{}]\n", given.name);
        for (setting, name) in given.settings {
            // Only letters, digits and dashes, which have no meaning in TOML strings.
            text += &format!("{setting} = \"{}\"\n", password(name)?.expose());
        }
        write_private(&folder.join("braid.toml"), text.as_bytes())?;
    }
    for name in given.files {
        let secret: Secret = password(name)?;
        write_private(&folder.join(name), secret.expose().as_bytes())?;
    }
    if given.name == "kafka" {
        // Kafka reads both from one file.
        let read = |file: &Path| fs::read(file).map_err(|error| failed(file, &error));
        let joined = [read(&files.key)?, read(&files.cert)?].concat();
        write_private(&folder.join("kafka.keystore.pem"), &joined)?;
    }
    let Some(uid) = recipient.uid else {
        return Ok(());
    };
    let owned = |path: &Path| chown(path, Some(uid), None).map_err(|error| failed(path, &error));
    owned(folder)?;
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for entry in entries {
        owned(&entry.map_err(|error| failed(folder, &error))?.path())?;
    }
    Ok(())
}

/// Atomic: a reader never sees a partial file.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    private_files::replace(path, bytes).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::other(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn make(dir: &Path) {
        make_with(dir, None);
    }

    fn make_with(dir: &Path, issuing: Option<&str>) {
        let recipients = RECIPIENTS.map(|given| given.name.parse().unwrap()).into();
        SecretsCommand::Make {
            authority: dir.join("authority"),
            out: dir.join("out"),
            recipients,
            issuing: issuing.map(str::to_owned),
            gateway: "gw-7".to_owned(),
            page_hosts: "ward.example.org, 10.1.2.3".parse().unwrap(),
        }
        .run()
        .unwrap();
    }

    #[test]
    fn each_recipient_gets_its_own_secrets_and_both_sides_of_a_password_agree() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let read = |file: &str| fs::read_to_string(dir.path().join("out").join(file)).unwrap();
        let store = read("timescaledb/store");
        assert!(store.len() >= 16, "{store:?}");
        let ingest: toml::Table = read("ingest/braid.toml").parse().unwrap();
        assert_eq!(ingest["ingest"]["store_password"].as_str(), Some(&*store));
        assert_eq!(read("dashboard/store"), store);
        let of = |noun: &str| {
            let table: toml::Table = read(&format!("{noun}/braid.toml")).parse().unwrap();
            table[noun]["sensor_token"].as_str().unwrap().to_owned()
        };
        assert_eq!(of("gateway"), of("swarm"));
        assert!(read("gateway/gw-7.pem").contains("CERTIFICATE"));
        assert!(read("kafka/kafka.keystore.pem").contains("PRIVATE KEY"));
        // The proxy, which must not read health data, gets no password, and no recipient gets the
        // authority's key.
        assert!(!dir.path().join("out/proxy/braid.toml").exists());
        for given in RECIPIENTS {
            let folder = dir.path().join("out").join(given.name);
            for key in ["ca.key", "gateways.key"] {
                assert!(!folder.join(key).exists());
            }
            let believed = fs::read_to_string(folder.join("ca.pem")).unwrap();
            let authorities = believed.matches("BEGIN CERTIFICATE").count();
            let meets = MEET_GATEWAYS.contains(&given.name);
            assert_eq!(authorities, 1 + usize::from(meets), "{}", given.name);
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let public = entry.path().extension().is_some_and(|it| it == "pem")
                    && !entry.path().ends_with("kafka.keystore.pem");
                let mode = entry.metadata().unwrap().permissions().mode();
                assert!(public || mode & 0o077 == 0, "{:?}", entry.path());
            }
        }
        // A second run keeps the passwords.
        make(dir.path());
        assert_eq!(read("timescaledb/store"), store);
    }

    #[test]
    fn the_authority_for_gateways_goes_to_the_issuer_and_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| dir.path().join("out").join(name);
        // The state of an older version: the general key beside the dashboard's certificate.
        let of_all = folder("dashboard").join("ca.key");
        fs::create_dir_all(folder("dashboard")).unwrap();
        fs::write(&of_all, "a key").unwrap();
        make_with(dir.path(), Some("dashboard"));
        assert!(!of_all.exists());
        let issuing = LocalAuthority::open(&folder("dashboard")).unwrap();
        let service = PeerId::service("ingest");
        assert!(issuing.issue_in(&folder("stolen"), &service, &[]).is_err());
        // Gateways trust the general authority, whose key is not there.
        let of_all = LocalAuthority::open_or_create(&dir.path().join("authority")).unwrap();
        assert_eq!(
            issuing.fingerprint().unwrap(),
            of_all.fingerprint().unwrap()
        );
        let key = folder("dashboard").join("gateways.key");
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o077, 0);
        for given in RECIPIENTS.iter().filter(|it| it.name != "dashboard") {
            assert!(!folder(given.name).join("gateways.key").exists());
        }
        make(dir.path());
        assert!(!key.exists());
    }

    #[test]
    fn unknown_recipients_are_refused() {
        assert!("mallory".parse::<Recipient>().is_err());
        assert!("ingest:me".parse::<Recipient>().is_err());
        let recipient: Recipient = "ingest:65532".parse().unwrap();
        assert_eq!(recipient.uid, Some(65532));
    }

    #[test]
    fn the_page_certificate_has_the_names_that_people_use() {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let names = |file: &str| {
            let pem = CertificateDer::from_pem_file(dir.path().join("out").join(file)).unwrap();
            let (_, certificate) = X509Certificate::from_der(&pem).unwrap();
            let names = certificate.subject_alternative_name().unwrap().unwrap();
            let known = names
                .value
                .general_names
                .iter()
                .filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some((*name).to_owned()),
                    GeneralName::IPAddress(octets) => Some(format!("{octets:?}")),
                    _ => None,
                });
            known.collect::<Vec<_>>()
        };
        let envoy = names("envoy/envoy.pem");
        for wanted in ["envoy", "ward.example.org", "[10, 1, 2, 3]"] {
            assert!(envoy.iter().any(|name| name == wanted), "{envoy:?}");
        }
        assert!(!names("ingest/ingest.pem").contains(&"ward.example.org".to_owned()));
        for wrong in [
            "ward example",
            "-a.org",
            "10.1.2.300",
            "https://ward",
            "a..b",
        ] {
            assert!(wrong.parse::<Hosts>().is_err(), "{wrong}");
        }
        assert!("".parse::<Hosts>().unwrap().0.is_empty());
        assert_eq!("a, *.b-c.org,::1".parse::<Hosts>().unwrap().0.len(), 3);
    }
}
