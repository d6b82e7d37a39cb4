//! Calls about people, gateways, the log, patients' records and sensors, for the marked tenant's
//! data.

use contracts::identity::{
    EnrolGatewayRequest, ListAccountsRequest, ListAuditRequest, ListGatewaysRequest,
    PutAccountRequest, RemoveAccountRequest, RevokeGatewayRequest,
};
use contracts::patients::{
    AssignSensorRequest, Change, ChangePatientsRequest, EndAssignmentRequest, GetRecordRequest,
    ListAssignmentsRequest, ListRecordsRequest, Operation,
};
use tonic::Code;

use super::{MARK, OWNER, described};
use crate::browser::{administration, patients};
use crate::ward::Ward;

/// Calls one method of the administration, as [`call`] does.
pub async fn administer(ward: &Ward, cookie: &str, method: &str) -> String {
    let mut administration = administration(ward, cookie);
    let (patient, gateway) = (format!("p-{MARK}"), format!("g-{MARK}"));
    let mut heard = String::new();
    match method {
        "ListAudit" => {
            for patient in [patient, String::new()] {
                let request = ListAuditRequest {
                    patient,
                    ..ListAuditRequest::default()
                };
                // Only the names of callers count, because an entry is written for refused calls
                // too.
                let answer = administration.list_audit(request).await.unwrap();
                let entries = answer.into_inner().entries.into_iter();
                heard.extend(entries.map(|entry| entry.who));
            }
        }
        "ListGateways" => {
            heard += &described(administration.list_gateways(ListGatewaysRequest {}).await)
        }
        "EnrolGateway" => {
            let request = EnrolGatewayRequest {
                gateway: gateway.clone(),
                reason: "r".to_owned(),
                valid_hours: 1,
            };
            // A token does not contain its owner.
            match administration.enrol_gateway(request).await {
                Ok(_) => heard += &gateway,
                Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{status}"),
            }
        }
        "RevokeGateway" => {
            let (gateway, reason) = (gateway, "r".to_owned());
            let request = RevokeGatewayRequest {
                gateway: gateway.clone(),
                reason,
            };
            match administration.revoke_gateway(request).await {
                Ok(_) => heard += &gateway,
                Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{status}"),
            }
        }
        "ListAccounts" => {
            heard += &described(administration.list_accounts(ListAccountsRequest {}).await)
        }
        "PutAccount" => {
            let request = PutAccountRequest {
                name: OWNER.to_owned(),
                role: "administrator".to_owned(),
                reason: "r".to_owned(),
                ..PutAccountRequest::default()
            };
            match administration.put_account(request).await {
                Ok(_) => heard += OWNER,
                Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status}"),
            }
        }
        "RemoveAccount" => {
            let (name, reason) = (OWNER.to_owned(), "r".to_owned());
            let request = RemoveAccountRequest { name, reason };
            match administration.remove_account(request).await {
                Ok(_) => panic!("an owner has removed the own account, or another tenant's person"),
                Err(status) if status.code() == Code::FailedPrecondition => heard += OWNER,
                Err(status) => assert_eq!(status.code(), Code::NotFound, "{status}"),
            }
        }
        other => return of_patients(ward, cookie, other).await,
    }
    heard
}

/// Calls one method about patients' records, as [`call`] does.
async fn of_patients(ward: &Ward, cookie: &str, method: &str) -> String {
    let mut client = patients(ward, cookie);
    let patient = format!("p-{MARK}");
    match method {
        "ListRecords" => {
            let request = ListRecordsRequest {
                include_departed: true,
                ..ListRecordsRequest::default()
            };
            described(client.list_records(request).await)
        }
        "GetRecord" => described(client.get_record(GetRecordRequest { patient }).await),
        "ChangePatients" => {
            let change = Change {
                patient: patient.clone(),
                operation: Operation::Pause.into(),
                ..Change::default()
            };
            let request = ChangePatientsRequest {
                changes: vec![change],
                reason: "r".to_owned(),
                dry_run: true,
            };
            // A refusal names the id that was asked for.
            match client.change_patients(request).await {
                Ok(answer) => format!("{:?}", answer.into_inner()),
                Err(status) => {
                    assert!(!status.message().contains("Name"), "{status}");
                    String::new()
                }
            }
        }
        "ListAssignments" => {
            let request = ListAssignmentsRequest::default();
            described(client.list_assignments(request).await)
        }
        "AssignSensor" => {
            let request = AssignSensorRequest {
                sensor: format!("d-{MARK}"),
                gateway: format!("g-{MARK}"),
                patient,
                reason: "r".to_owned(),
                dry_run: true,
            };
            match client.assign_sensor(request).await {
                Ok(answer) => format!("{:?}", answer.into_inner()),
                Err(status) => {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                    String::new()
                }
            }
        }
        "EndAssignment" => {
            let sensor = format!("{patient}-device");
            let reason = "r".to_owned();
            match client
                .end_assignment(EndAssignmentRequest { sensor, reason })
                .await
            {
                Ok(answer) => format!("{:?}", answer.into_inner()),
                Err(status) => {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                    String::new()
                }
            }
        }
        other => panic!("{other} is new: describe here how it asks for another tenant's data"),
    }
}
