//! `braid gateway wipe` and `braid gateway rejected`: what a person does with the key and the data
//! of a gateway that is stopped.

use std::fmt;

use service_kit::ConfigError;

use crate::{
    Config, RunError,
    clock::Moment,
    journal::{Directory, recovery},
    sealing::{Keys, REFUSED, Record},
    to_ingest,
};

const CLASSES: [&str; 2] = ["vitals", "alerts"];

/// The parts that a wipe destroys, or would destroy.
#[derive(Debug)]
pub struct Wiped {
    is_done: bool,
    data_dir: String,
    key: Option<String>,
    /// Entries that were not sent, of each journal, or why they cannot be counted.
    unsent: Vec<(&'static str, Result<u64, String>)>,
    /// Samples that ingest had refused.
    refused: Result<usize, String>,
}

impl fmt::Display for Wiped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_done {
            true => writeln!(f, "destroyed in {}:", self.data_dir)?,
            false => writeln!(f, "this would be destroyed in {}:", self.data_dir)?,
        }
        match &self.key {
            Some(key) => writeln!(f, "  the key {key}")?,
            None => writeln!(f, "  no key: there is none")?,
        }
        for (class, unsent) in &self.unsent {
            match unsent {
                Ok(unsent) => writeln!(f, "  the journal of {class}: {unsent} not sent")?,
                Err(reason) => writeln!(f, "  the journal of {class}, not readable: {reason}")?,
            }
        }
        match &self.refused {
            Ok(refused) => writeln!(f, "  rejected.jsonl: {refused} samples")?,
            Err(reason) => writeln!(f, "  rejected.jsonl, not readable: {reason}")?,
        }
        writeln!(
            f,
            "  rules of the core, their states, and the list of open alerts"
        )
    }
}

/// Destroys the key, the journals and everything else of people that the gateway keeps, if the
/// person `is_sure`. Refuses while the gateway runs. Blocks on the disk.
pub fn wipe(config: &Config, is_sure: bool) -> Result<Wiped, RunError> {
    if !config.data_dir.is_dir() {
        let reason = format!("{} is no folder", config.data_dir.display());
        let example = "braid gateway --data-dir /var/lib/braid wipe";
        return Err(ConfigError::new("data_dir", reason, example).into());
    }
    let places = config.places();
    let path = places.key.path().display().to_string();
    let key = places.key.exists().then_some(path);
    let opened = config.existing_keys().map_err(|error| error.to_string());
    let keys = opened.clone().unwrap_or_else(|_| Keys::none());
    let mut unsent = Vec::new();
    // They keep a gateway from starting meanwhile.
    let mut locked = Vec::new();
    for class in CLASSES {
        let path = config.data_dir.join("journal").join(class);
        if !path.exists() {
            continue;
        }
        let directory = Directory::open(&path, keys.for_folder(class));
        let directory = directory.map_err(|source| RunError::Directory {
            path: path.display().to_string(),
            source,
        })?;
        let waiting = recovery::waiting(&directory).map_err(|error| error.to_string());
        unsent.push((class, waiting));
        locked.push(directory);
    }
    let refused = opened.and_then(|keys| {
        let read = read_refused(config, &keys).map_err(|error| error.to_string());
        read.map(|(lines, damaged)| lines.lines().count() + damaged)
    });
    if is_sure {
        let counted = unsent.iter().map(|(_, it)| it.as_ref().ok().copied());
        let record = Record {
            at_us: Moment::now().wall_us,
            certificate: String::new(),
            unsent: counted.sum(),
        };
        let destroyed = places.destroy(&record);
        destroyed
            .and_then(|()| places.remove_record())
            .map_err(|source| RunError::Directory {
                path: config.data_dir.display().to_string(),
                source,
            })?;
    }
    Ok(Wiped {
        is_done: is_sure,
        data_dir: config.data_dir.display().to_string(),
        key,
        unsent,
        refused,
    })
}

/// The samples that ingest refused, as lines of JSON, and the number of damaged lines. Blocks on
/// the disk.
pub fn rejected(config: &Config) -> Result<(String, usize), RunError> {
    let keys = config.existing_keys().map_err(ConfigError::from)?;
    read_refused(config, &keys)
}

fn read_refused(config: &Config, keys: &Keys) -> Result<(String, usize), RunError> {
    let keys = keys.for_folder("");
    let (mut lines, mut damaged) = (String::new(), 0);
    for name in REFUSED {
        let path = config.data_dir.join(name);
        let read = to_ingest::read_letters(&path, &keys);
        let (more, bad) = read.map_err(|source| RunError::Directory {
            path: path.display().to_string(),
            source,
        })?;
        lines.push_str(&more);
        damaged += bad;
    }
    Ok((lines, damaged))
}
