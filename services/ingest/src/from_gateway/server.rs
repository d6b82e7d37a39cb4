//! The server of IngestService. Its decoder keeps uploads with unknown fields, which the generated
//! one drops.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use contracts::vitals::ingest_service_server::SERVICE_NAME;
use contracts::vitals::{FollowRulesRequest, FollowRulesResponse, UploadResponse};
use prost::Message;
use prost::bytes::Buf;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::follow_rules::{Followers, RulesStream};
use super::newer::Upload;
use super::{Gateways, UploadStream};

const UPLOAD: &str = "/braid.vitals.v1.IngestService/Upload";

const FOLLOW_RULES: &str = "/braid.vitals.v1.IngestService/FollowRules";

#[derive(Default)]
struct UploadCodec;

impl Codec for UploadCodec {
    type Encode = UploadResponse;
    type Decode = Upload;
    type Encoder = UploadCodec;
    type Decoder = UploadCodec;

    fn encoder(&mut self) -> UploadCodec {
        UploadCodec
    }

    fn decoder(&mut self) -> UploadCodec {
        UploadCodec
    }
}

impl Encoder for UploadCodec {
    type Item = UploadResponse;
    type Error = Status;

    fn encode(&mut self, answer: UploadResponse, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        answer
            .encode(to)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for UploadCodec {
    type Item = Upload;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Upload>, Status> {
        let whole = from.copy_to_bytes(from.remaining());
        Upload::decode(whole).map(Some)
    }
}

/// `braid.vitals.v1.IngestService`.
#[derive(Clone)]
pub(crate) struct Server {
    gateways: Arc<Gateways>,
    followers: Arc<Followers>,
}

impl Server {
    pub(crate) fn new(gateways: Gateways, followers: Followers) -> Server {
        Server {
            gateways: Arc::new(gateways),
            followers: Arc::new(followers),
        }
    }
}

impl NamedService for Server {
    const NAME: &'static str = SERVICE_NAME;
}

impl StreamingService<Upload> for Server {
    type Response = UploadResponse;
    type ResponseStream = UploadStream;
    type Future = BoxFuture<Response<UploadStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Upload>>) -> Self::Future {
        let gateways = Arc::clone(&self.gateways);
        Box::pin(async move { gateways.upload(request) })
    }
}

impl ServerStreamingService<FollowRulesRequest> for Server {
    type Response = FollowRulesResponse;
    type ResponseStream = RulesStream;
    type Future = BoxFuture<Response<RulesStream>, Status>;

    fn call(&mut self, request: Request<FollowRulesRequest>) -> Self::Future {
        let followers = Arc::clone(&self.followers);
        Box::pin(async move { followers.follow(request) })
    }
}

impl<B> Service<http::Request<B>> for Server
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                UPLOAD => Grpc::new(UploadCodec).streaming(this, request).await,
                FOLLOW_RULES => {
                    let codec = contracts::codec::Codec::default();
                    Grpc::new(codec).server_streaming(this, request).await
                }
                _ => Status::unimplemented("IngestService has Upload and FollowRules").into_http(),
            })
        })
    }
}
