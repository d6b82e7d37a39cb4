//! A proof as a file that can be checked years later, without the installation.
//!
//! The first line is the proof as JSON, and the second line its signature. The signature covers the
//! bytes of the first line. The key signs nothing but proofs: the platform's authority vouches for
//! machines, and its leaves expire within months.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use crate::process::Failure;

/// Bytes of a file that is read. The largest proof has some 200 gaps of each of 4096 streams.
const FILE_BYTES_MAX: u64 = 256 << 20;
const ALGORITHM: &str = "ed25519";

pub fn write(out: &Path, key: &Path, proof: &Value) -> Result<(), Failure> {
    let pair = open_or_create(key)?;
    let line = proof.to_string();
    let signature = json!({
        "algorithm": ALGORITHM,
        "public_key": STANDARD.encode(pair.public_key()),
        "signature": STANDARD.encode(pair.sign(line.as_bytes())),
    });
    fs::write(out, format!("{line}\n{signature}\n"))
        .map_err(|error| at(out, format!("the proof is not written: {error}")))
}

/// The proof of a file that the key has signed.
pub fn read(file: &Path, key: &Path) -> Result<Value, Failure> {
    let length = fs::metadata(file).map_err(|error| at(file, error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(at(file, "is too large for a proof"));
    }
    let text = fs::read_to_string(file).map_err(|error| at(file, error))?;
    let mut lines = text.lines();
    let (Some(line), Some(signed), None) = (lines.next(), lines.next(), lines.next()) else {
        return Err(at(file, "is no signed proof: it has two lines"));
    };
    let public = fs::read_to_string(key).map_err(|error| at(key, error))?;
    let public = decoded(public.trim()).ok_or_else(|| at(key, "is no public key in base64"))?;
    let signed: Value = serde_json::from_str(signed)
        .map_err(|error| at(file, format!("its second line is no signature: {error}")))?;
    let signature = (signed["algorithm"] == ALGORITHM)
        .then(|| decoded(signed["signature"].as_str()?))
        .flatten()
        .ok_or_else(|| {
            at(
                file,
                format!("its second line has no {ALGORITHM} signature"),
            )
        })?;
    UnparsedPublicKey::new(&ED25519, public)
        .verify(line.as_bytes(), &signature)
        .map_err(|_| at(file, "was changed, or another key has signed it"))?;
    serde_json::from_str(line).map_err(|error| at(file, error))
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn open_or_create(key: &Path) -> Result<Ed25519KeyPair, Failure> {
    let bytes = match fs::read(key) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(key)?,
        Err(error) => return Err(at(key, error)),
    };
    Ed25519KeyPair::from_pkcs8(&bytes).map_err(|error| at(key, error))
}

fn create(key: &Path) -> Result<Vec<u8>, Failure> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| at(key, "the system gives no random numbers"))?;
    let pair = Ed25519KeyPair::from_pkcs8(made.as_ref()).map_err(|error| at(key, error))?;
    private_files::replace(key, made.as_ref()).map_err(|error| at(key, error))?;
    let public = key.with_extension("pub");
    fs::write(&public, STANDARD.encode(pair.public_key()) + "\n")
        .map_err(|error| at(&public, error))?;
    Ok(made.as_ref().to_vec())
}

fn at(path: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::other(format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_changed_proof_or_another_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (file, key, public) = (path("p"), path("a.key"), path("a.pub"));
        let proof = json!({"patient": "ada", "state": "incomplete"});
        write(&file, &key, &proof).unwrap();
        assert_eq!(read(&file, &public).unwrap(), proof);
        let again = path("again");
        write(&again, &key, &proof).unwrap();
        assert_eq!(read(&again, &public).unwrap(), proof, "the same key");

        let text = fs::read_to_string(&file).unwrap();
        fs::write(path("changed"), text.replace("incomplete", "complete")).unwrap();
        let refused = read(&path("changed"), &public).unwrap_err();
        assert!(refused.to_string().contains("was changed"), "{refused}");
        write(&path("other"), &path("b.key"), &proof).unwrap();
        assert!(read(&path("other"), &public).is_err());
        fs::write(path("one"), text.lines().next().unwrap()).unwrap();
        assert!(read(&path("one"), &public).is_err());
    }
}
