//! Certificate, key and authority.

use std::time::{Duration, SystemTime};

use service_kit::tls::{Identity, IdentityFiles};

use super::finding::Finding;

const SUBJECT: &str = "identity";
/// A certificate that ends earlier should have been renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(7 * 24 * 3600);
const RENEW: &str =
    "issue it anew (`braid identity issue --help`); services take it without a restart";

/// Empty if no identity was given.
pub fn look(files: &IdentityFiles, now: SystemTime) -> Vec<Finding> {
    if *files == IdentityFiles::default() {
        return Vec::new();
    }
    if let Err(error) = files.validate() {
        return vec![Finding::failed(SUBJECT, error.reason, error.example)];
    }
    vec![judge(files, now).unwrap_or_else(|reason| {
        Finding::failed(
            SUBJECT,
            reason,
            "give files that fit together: --cert, --key and --ca of one authority",
        )
    })]
}

fn judge(files: &IdentityFiles, now: SystemTime) -> Result<Finding, String> {
    let text = |error: service_kit::tls::IdentityError| error.to_string();
    let identity = Identity::load(files).map_err(text)?;
    let who = identity.peer_id().map_err(text)?;
    let end = identity.valid_until().map_err(text)?;
    let Ok(left) = end.duration_since(now) else {
        let ago = now.duration_since(end).unwrap_or_default();
        let says = format!("{who}: the certificate ended {} ago", days(ago));
        return Ok(Finding::failed(SUBJECT, says, RENEW));
    };
    if let Some(error) = identity.refused_by_peers(now).map_err(text)? {
        return Err(format!(
            "{who}: peers that believe {} refuse the certificate: {error}",
            files.ca.display()
        ));
    }
    let says = format!("{who}: valid for {}", days(left));
    Ok(if left < RENEW_BEFORE {
        Finding::warning(SUBJECT, says, RENEW)
    } else {
        Finding::ok(SUBJECT, says)
    })
}

fn days(duration: Duration) -> String {
    let hours = duration.as_secs() / 3600;
    match hours {
        0..48 => format!("{hours} hours"),
        _ => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service_kit::tls::{PeerId, authority::LocalAuthority};

    use super::super::finding::State;
    use super::*;

    #[test]
    fn a_certificate_is_well_then_due_then_over() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let files = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
        let end = Identity::load(&files).unwrap().valid_until().unwrap();
        let before = |hours: u64| end - Duration::from_secs(hours * 3600);
        let found = |now| look(&files, now).remove(0);
        assert_eq!(found(before(24 * 8)).state, State::Ok);
        let due = found(before(30));
        assert_eq!(due.state, State::Warning);
        assert!(
            due.says.contains("30 hours") && due.says.contains("ingest"),
            "{due}"
        );
        let over = found(end + Duration::from_secs(3 * 3600));
        assert_eq!(over.state, State::Failed);
        assert!(over.says.contains("ended 3 hours ago"), "{over}");
    }

    #[test]
    fn files_of_two_authorities_do_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let ours = LocalAuthority::open_or_create(&dir.path().join("a")).unwrap();
        let other = LocalAuthority::open_or_create(&dir.path().join("b")).unwrap();
        let mut files = ours.issue(&PeerId::service("ingest"), &[]).unwrap();
        files.ca = other.ca_file();
        let found = look(&files, SystemTime::now()).remove(0);
        assert_eq!(found.state, State::Failed);
        assert!(found.says.contains("refuse"), "{found}");

        files.ca = ours.ca_file();
        files.key = other.issue(&PeerId::service("ingest"), &[]).unwrap().key;
        let found = look(&files, SystemTime::now()).remove(0);
        assert_eq!(found.state, State::Failed, "{found}");
        assert!(look(&IdentityFiles::default(), SystemTime::now()).is_empty());
    }
}
