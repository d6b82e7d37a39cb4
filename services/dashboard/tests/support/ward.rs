//! A demonstration ward: embedded engines in a directory, simulated alerting and links, and the
//! dashboard over them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bus::{Bus, EmbeddedBus, EmbeddedOptions, Record, Topic};
use clap::{Args, FromArgMatches};
use contracts::alerts::alerts_service_server::{AlertsService, AlertsServiceServer};
use contracts::alerts::{
    AcknowledgeRequest, AcknowledgeResponse, Alert, AlertState, ListAlertsRequest,
    ListAlertsResponse, ListDocumentsRequest, ListDocumentsResponse, ListNoticesRequest,
    ListNoticesResponse, ListUntoldRequest, ListUntoldResponse, PutDocumentRequest,
    PutDocumentResponse, WithdrawRequest, WithdrawResponse,
};
use contracts::paths::link_service_server::{LinkService, LinkServiceServer};
use contracts::paths::{
    Link, ListLinksRequest, ListLinksResponse, PathReport, PathsRecord, SetLinkRequest,
    SetLinkResponse,
};
use contracts::vitals::{
    Metric, Priority, Quarantined, Sample, VitalsRecord, quarantined, sample::Reading,
};
use dashboard::{Config, accounts};
use parking_lot::Mutex;
use prost::Message;
use service_kit::Context;
use store::{
    AlertsBatch, DeviceEntry, PatientEntry, Role, Spo2Scale, SqliteStore, Store, VitalsBatch,
};
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

pub const PASSWORD: &str = "correct horse battery";

pub struct Ward {
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
    pub context: Context,
    pub address: SocketAddr,
    pub acknowledged: Arc<Mutex<Vec<AcknowledgeRequest>>>,
    pub links: Arc<Mutex<Vec<Link>>>,
    pub dashboard: JoinHandle<Result<(), dashboard::RunError>>,
    helpers: Vec<Context>,
}

impl Ward {
    pub async fn start(dir: &Path, listen: &str, flags: &[&str]) -> Ward {
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(dir, EmbeddedOptions::default()).expect("bus"));
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir).expect("store"));
        Ward::over(bus, store, listen, flags).await
    }

    /// Another replica over the same bus and store.
    pub async fn another(&self, listen: &str, flags: &[&str]) -> Ward {
        Ward::over(self.bus.clone(), self.store.clone(), listen, flags).await
    }

    /// The dashboard anew, at its address. The demonstration keeps its links.
    pub async fn restarted(self, flags: &[&str]) -> Ward {
        let (bus, store) = (self.bus.clone(), self.store.clone());
        let (address, links) = (self.address.to_string(), self.links.lock().clone());
        self.end().await;
        let ward = Ward::over(bus, store, &address, flags).await;
        *ward.links.lock() = links;
        ward
    }

    async fn over(bus: Arc<dyn Bus>, store: Arc<dyn Store>, listen: &str, flags: &[&str]) -> Ward {
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let links = Arc::new(Mutex::new(Vec::new()));
        let alerting = MadeUpAlerting {
            bus: bus.clone(),
            store: store.clone(),
            acknowledged: acknowledged.clone(),
        };
        let routes = tonic::service::Routes::new(AlertsServiceServer::new(alerting));
        let (alerting_context, alerting) = serve(routes).await;
        let routes = tonic::service::Routes::new(LinkServiceServer::new(MadeUpLinks {
            links: links.clone(),
        }));
        let (links_context, links_address) = serve(routes).await;

        let alerting_url = format!("http://{alerting}");
        let links_url = format!("http://{links_address}");
        let line = [
            "dashboard",
            "--listen",
            listen,
            "--cert",
            "x",
            "--key",
            "x",
            "--ca",
            "x",
        ];
        let urls = ["--alerting-url", &alerting_url, "--links-url", &links_url];
        // So that somebody would be told of an outage. Nothing listens there.
        let mail = [
            "--smtp",
            "smtp-plain://127.0.0.1:1",
            "--email-from",
            "braid@example.org",
            "--email-to",
            "it@example.org",
        ];
        let matches = Config::augment_args(clap::Command::new("dashboard"))
            .get_matches_from(line.iter().chain(&urls).chain(&mail).chain(flags));
        let mut config = Config::from_arg_matches(&matches).expect("flags");
        config.identity = service_kit::tls::IdentityFiles::default();

        let context = Context::new("dashboard");
        let dashboard = tokio::spawn(dashboard::run(
            config,
            bus.clone(),
            store.clone(),
            context.clone(),
        ));
        let address = context.address("page").await.expect("the page listens");
        Ward {
            bus,
            store,
            context,
            address,
            acknowledged,
            links,
            dashboard,
            helpers: vec![alerting_context, links_context],
        }
    }

    pub async fn account(&self, name: &str, role: Role) {
        accounts::ensure(self.store.as_ref(), name, PASSWORD, role)
            .await
            .expect("account");
    }

    pub async fn patient(&self, id: &str, name: &str, tenant: &str, gateway: &str) {
        let entry = PatientEntry {
            id: id.to_owned(),
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        self.store.put_patient(&entry).await.expect("patient");
        let entry = DeviceEntry {
            id: format!("{id}-device"),
            tenant: tenant.to_owned(),
            gateway: gateway.to_owned(),
            patient: id.to_owned(),
            registered_us: 0,
        };
        self.store.put_device(&entry).await.expect("device");
    }

    /// Published and stored as ingest does. All samples belong to one patient.
    pub async fn vitals(&self, samples: Vec<Sample>) {
        self.vitals_of_many(vec![samples]).await;
    }

    /// The same for many patients at once, with one record each.
    pub async fn vitals_of_many(&self, patients: Vec<Vec<Sample>>) {
        let record = |samples: &Vec<Sample>| {
            let patient = samples.first()?.patient.clone();
            let record = VitalsRecord {
                samples: samples.clone(),
                ..VitalsRecord::default()
            };
            Some(Record::new(patient, record.encode_to_vec()))
        };
        let records: Vec<Record> = patients.iter().filter_map(record).collect();
        if records.is_empty() {
            return;
        }
        let published = self.bus.publish(Topic::Vitals, records).await;
        published.expect("published");
        let batch = Arc::new(VitalsBatch {
            samples: patients.into_iter().flatten().collect(),
            ..VitalsBatch::default()
        });
        self.store
            .write_vitals(batch, Vec::new())
            .await
            .expect("vitals are stored");
    }

    /// Readings of a sensor that no patient wears, kept apart as ingest does.
    pub async fn quarantined(&self, tenant: &str, gateway: &str, device: &str, count: u64) {
        let apart = |sequence| {
            let sample = Sample {
                device: device.to_owned(),
                gateway: gateway.to_owned(),
                patient: String::new(),
                ..heart_rate("", sequence, 70.0)
            };
            Quarantined {
                tenant: tenant.to_owned(),
                gateway: gateway.to_owned(),
                kind: "unknown-device".to_owned(),
                reason: "the register does not know the device".to_owned(),
                arrived_us: contracts::now_us(),
                entry: Some(quarantined::Entry::Sample(sample)),
            }
        };
        let batch = Arc::new(VitalsBatch {
            quarantined: (1..=count).map(apart).collect(),
            ..VitalsBatch::default()
        });
        let written = self.store.write_vitals(batch, Vec::new()).await;
        written.expect("kept apart");
    }

    pub async fn alert(&self, alert: Alert) {
        record_alert(&self.bus, &self.store, alert).await;
    }

    /// The same for many alerts at once.
    pub async fn alerts(&self, alerts: Vec<Alert>) {
        let record = |alert: &Alert| Record::new(alert.patient.as_str(), alert.encode_to_vec());
        let records: Vec<Record> = alerts.iter().map(record).collect();
        let batch = AlertsBatch {
            transitions: alerts,
            states: Vec::new(),
        };
        let stored = self.store.write_alerts(batch, Vec::new()).await;
        stored.expect("the alerts are stored");
        let published = self.bus.publish(Topic::Alerts, records).await;
        published.expect("published");
    }

    pub async fn paths(&self, gateway: &str, reports: Vec<PathReport>) {
        self.paths_of_many(vec![(gateway.to_owned(), reports)])
            .await;
    }

    /// The same for many gateways at once, with one record each.
    pub async fn paths_of_many(&self, gateways: Vec<(String, Vec<PathReport>)>) {
        let record = |(gateway, reports): &(String, Vec<PathReport>)| {
            let reports = reports.clone();
            Record::new(gateway.as_str(), PathsRecord { reports }.encode_to_vec())
        };
        let records: Vec<Record> = gateways.iter().map(record).collect();
        if records.is_empty() {
            return;
        }
        let published = self.bus.publish(Topic::Paths, records).await;
        published.expect("published");
        let reports = gateways.into_iter().flat_map(|it| it.1).collect();
        self.store
            .write_paths(reports, Vec::new())
            .await
            .expect("paths are stored");
    }

    pub async fn end(self) {
        self.context.shutdown().request();
        self.dashboard
            .await
            .expect("no panic")
            .expect("a clean end");
        for helper in self.helpers {
            helper.shutdown().request();
        }
    }
}

async fn serve(routes: tonic::service::Routes) -> (Context, SocketAddr) {
    let context = Context::new("made-up");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = context.clone();
    tokio::spawn(async move {
        service_kit::grpc::serve_routes(listener, "grpc", routes, None, &serving).await
    });
    (context, address)
}

async fn publish(bus: &Arc<dyn Bus>, topic: Topic, key: &str, value: Vec<u8>) {
    bus.publish(topic, vec![Record::new(key, value)])
        .await
        .expect("published");
}

async fn record_alert(bus: &Arc<dyn Bus>, store: &Arc<dyn Store>, alert: Alert) {
    let batch = AlertsBatch {
        transitions: vec![alert.clone()],
        states: Vec::new(),
    };
    store
        .write_alerts(batch, Vec::new())
        .await
        .expect("the alert is stored");
    publish(bus, Topic::Alerts, &alert.patient, alert.encode_to_vec()).await;
}

pub fn heart_rate(patient: &str, sequence: u64, value: f64) -> Sample {
    Sample {
        device: format!("{patient}-device"),
        stream: "heart-rate".to_owned(),
        sequence,
        metric: Metric::HeartRate.into(),
        unit: "/min".to_owned(),
        device_time_us: contracts::now_us(),
        gateway_time_us: contracts::now_us(),
        ingest_time_us: contracts::now_us(),
        patient: patient.to_owned(),
        gateway: "g1".to_owned(),
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    }
}

pub fn alert(patient: &str, id: &str, summary: &str, priority: Priority) -> Alert {
    Alert {
        id: id.to_owned(),
        patient: patient.to_owned(),
        device: format!("{patient}-device"),
        gateway: "g1".to_owned(),
        rule: "heart-rate-very-high".to_owned(),
        metric: Metric::HeartRate.into(),
        priority: priority.into(),
        state: AlertState::Active.into(),
        summary: summary.to_owned(),
        since_us: contracts::now_us(),
        changed_us: contracts::now_us(),
        recorded_us: contracts::now_us(),
        revision: 1,
        from_core: true,
        ..Alert::default()
    }
}

struct MadeUpAlerting {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    acknowledged: Arc<Mutex<Vec<AcknowledgeRequest>>>,
}

#[tonic::async_trait]
impl AlertsService for MadeUpAlerting {
    async fn put_document(
        &self,
        request: Request<PutDocumentRequest>,
    ) -> Result<Response<PutDocumentResponse>, Status> {
        let PutDocumentRequest { document, dry_run } = request.into_inner();
        let document = document.ok_or_else(|| Status::invalid_argument("document"))?;
        if !dry_run {
            let put = self.store.put_document(&document).await;
            put.map_err(|_| Status::aborted("version"))?;
        }
        Ok(Response::new(PutDocumentResponse {
            document: Some(document),
            ..PutDocumentResponse::default()
        }))
    }

    // The dashboard reads these from the store.
    async fn list_documents(
        &self,
        _: Request<ListDocumentsRequest>,
    ) -> Result<Response<ListDocumentsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_notices(
        &self,
        _: Request<ListNoticesRequest>,
    ) -> Result<Response<ListNoticesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_untold(
        &self,
        _: Request<ListUntoldRequest>,
    ) -> Result<Response<ListUntoldResponse>, Status> {
        Ok(Response::new(ListUntoldResponse::default()))
    }

    async fn acknowledge(
        &self,
        request: Request<AcknowledgeRequest>,
    ) -> Result<Response<AcknowledgeResponse>, Status> {
        let request = request.into_inner();
        self.acknowledged.lock().push(request.clone());
        let alert = self.store.alert(&store::Scope::Service, &request.id).await;
        let mut alert = alert
            .ok()
            .flatten()
            .ok_or_else(|| Status::not_found("no such alert"))?;
        alert.state = AlertState::Acknowledged.into();
        alert.acknowledged_by = request.by;
        alert.note = request.note;
        alert.revision += 1;
        alert.changed_us = contracts::now_us();
        record_alert(&self.bus, &self.store, alert.clone()).await;
        Ok(Response::new(AcknowledgeResponse { alert: Some(alert) }))
    }

    async fn withdraw(
        &self,
        request: Request<WithdrawRequest>,
    ) -> Result<Response<WithdrawResponse>, Status> {
        let request = request.into_inner();
        let alert = self.store.alert(&store::Scope::Service, &request.id).await;
        let mut alert = alert
            .ok()
            .flatten()
            .filter(|alert| alert.acknowledged_by == request.by)
            .ok_or_else(|| Status::failed_precondition("another person"))?;
        alert.state = AlertState::Active.into();
        alert.acknowledged_by.clear();
        alert.revision += 1;
        record_alert(&self.bus, &self.store, alert.clone()).await;
        Ok(Response::new(WithdrawResponse { alert: Some(alert) }))
    }

    async fn list_alerts(
        &self,
        _: Request<ListAlertsRequest>,
    ) -> Result<Response<ListAlertsResponse>, Status> {
        Ok(Response::new(ListAlertsResponse::default()))
    }
}

struct MadeUpLinks {
    links: Arc<Mutex<Vec<Link>>>,
}

#[tonic::async_trait]
impl LinkService for MadeUpLinks {
    async fn list_links(
        &self,
        _: Request<ListLinksRequest>,
    ) -> Result<Response<ListLinksResponse>, Status> {
        Ok(Response::new(ListLinksResponse {
            links: self.links.lock().clone(),
        }))
    }

    async fn set_link(
        &self,
        request: Request<SetLinkRequest>,
    ) -> Result<Response<SetLinkResponse>, Status> {
        let request = request.into_inner();
        let mut changed = Vec::new();
        for link in self.links.lock().iter_mut() {
            let matches = request.gateway.is_empty() || link.gateway == request.gateway;
            if matches && link.name == request.name {
                link.up = request.up.unwrap_or(link.up);
                changed.push(link.clone());
            }
        }
        Ok(Response::new(SetLinkResponse { links: changed }))
    }
}
