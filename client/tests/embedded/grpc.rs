//! gRPC over streams: tonic's own health service, and the peer name that services get.

use sealane::{StreamOptions, StreamPeer, Streams};
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_health::server::health_reporter;

use crate::two;

/// Accepts only requests that came by a stream of the worker.
fn of_the_worker(request: Request<()>) -> Result<Request<()>, Status> {
    match request.extensions().get::<StreamPeer>() {
        Some(StreamPeer(peer)) if **peer == *"worker0:2222" => Ok(request),
        other => Err(Status::permission_denied(format!("{other:?} is not the worker"))),
    }
}

#[test]
fn tonics_health_service_is_asked_and_watched() {
    let (ps, worker) = two();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (reporter, service) = health_reporter();
        reporter.set_service_status("training", tonic_health::ServingStatus::NotServing).await;
        let listener = Streams::of(&ps).listen("health", StreamOptions::default()).unwrap();
        let service = tonic::service::interceptor::InterceptedService::new(service, of_the_worker);
        tokio::spawn(Server::builder().serve_with_incoming(service, listener.incoming()));

        let connector = Streams::of(&worker).connector(ps.name(), "health", StreamOptions::default());
        let channel = Endpoint::from_static("http://ps0").connect_with_connector_lazy(connector);
        let mut client = HealthClient::new(channel);
        let request = |service: &str| HealthCheckRequest { service: service.to_owned() };
        let checked = client.check(request("training")).await.unwrap().into_inner();
        assert_eq!(checked.status(), ServingStatus::NotServing);
        assert_eq!(client.check(request("unknown")).await.unwrap_err().code(), Code::NotFound);

        let mut watched = client.watch(request("training")).await.unwrap().into_inner();
        assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        reporter.set_service_status("training", tonic_health::ServingStatus::Serving).await;
        assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    });
}
