//! Documents in a database with rows of a newer program, or damaged rows. One ward's rows do not
//! affect another's. If a document cannot be read, its version before applies.

use crate::support::fresh;
use store::{DOCUMENTS_MAX, DocumentsStore, Otherwise, Scope, conformance::ok, in_force};

/// A ward with many rules does not delay another's.
#[tokio::test]
async fn a_service_reads_the_rules_of_every_tenant_however_many_one_has() {
    let (store, client) = fresh().await;
    client
        .batch_execute(
            "INSERT INTO documents (kind, tenant, subject, version, until_us, payload)
             SELECT 'rules', 'a', 'patient:' || n, 1, 9, '' FROM generate_series(1, 10001) n;
             INSERT INTO documents (kind, tenant, subject, version, until_us, payload) VALUES ('rules', 'b', 'default', 1, 9, '')",
        )
        .await
        .unwrap();
    let read = async |scope| ok(store.stored_documents(&scope, "rules", 0).await).len();
    assert_eq!(read(Scope::Service).await, DOCUMENTS_MAX + 2);
    assert_eq!(read(Scope::tenant("a")).await, DOCUMENTS_MAX);
    assert_eq!(read(Scope::tenant("b")).await, 1);
}

/// It takes a newer program, or a fault below the database's checksums.
#[tokio::test]
async fn what_holds_for_a_document_that_cannot_be_read_is_the_version_before() {
    let (store, client) = fresh().await;
    let document = |subject: &str| contracts::alerts::Document {
        kind: "rules".into(),
        tenant: "a".into(),
        subject: subject.into(),
        version: 1,
        ..contracts::alerts::Document::default()
    };
    for subject in ["damaged", "sound", "ended"] {
        ok(store.put_document(&document(subject)).await);
    }
    client
        .batch_execute(
            "INSERT INTO documents (kind, tenant, subject, version, until_us, payload) VALUES
                 ('rules', 'a', 'damaged', 2, 9223372036854775807, '\\x0a'), ('rules', 'a', 'new', 1, 9223372036854775807, '\\x0a')",
        )
        .await
        .unwrap();
    assert!(store.documents(&Scope::Service, "rules", 0).await.is_err());
    let read = |document: &contracts::alerts::Document| match &*document.subject {
        "ended" => Err("of another time".to_owned()),
        subject => Ok(subject.to_owned()),
    };
    for (otherwise, hold, instead) in [
        (Otherwise::Earlier, vec!["damaged", "sound"], Some(1)),
        (Otherwise::Nothing, vec!["sound"], None),
    ] {
        let found = ok(in_force(&store, "rules", 0, otherwise, read).await);
        let made: Vec<_> = found.documents.iter().map(|(_, made)| &**made).collect();
        assert_eq!(made, hold);
        let damaged = found.damaged.iter();
        let damaged: Vec<_> = damaged.map(|it| (&*it.subject, it.instead)).collect();
        assert_eq!(
            damaged,
            [("damaged", instead), ("ended", None), ("new", None)]
        );
    }
}
