//! Rows by gRPC: one call a ps and step, whose request has the numbers of the rows of all tables, 32 bits each, and whose answer has
//! the rows, table by table. A ps has one thread and gathers as the other systems do; a worker is a task with a channel for each ps.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::try_join_all;
use sealane::Sharding;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::codegen::{BoxFuture, Context, Poll, Service};
use tonic::server::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tower::service_fn;

use super::codec::MessageCodec;
use super::{NAME, failed, runtime, service, spin, training as trainers};
use crate::error::BenchError;
use crate::peer::{PeerJob, PeerProgram, PeerReady, announce};
use crate::plan::{Plan, Tables};
use crate::process;
use crate::system::System;
use crate::systems::rows::{Memory, Wanted, tables};
use crate::systems::training::{self, Moved, StepLog, Trainees};

const PULL_ROWS: &str = "/sealane.bench.Tables/PullRows";

/// Bytes of a row's number in a request.
const ID_BYTES: usize = 4;

/// See the module.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--workers x --ps", training::of(plan).pairs(), 1)?;
    System::with_peer(job, program, |peer| {
        let runtime = runtime()?;
        let (channels, congestion) = trainers::connect(&runtime, plan, &peer.ready().ports)?;
        let sharding = Arc::new(sharding(plan)?);
        let mut channels = channels.chunks(training::of(plan).size.ps);
        let worker = |number| {
            let channels = channels.next().expect("every worker is connected with every ps").to_vec();
            Worker::new(plan, number, channels, Arc::clone(&sharding))
        };
        let workers = (0..training::of(plan).size.workers).map(worker).collect();
        let workers = Workers { workers, runtime, calls: 0, polling: plan.polling };
        Ok(training::system((NAME, "one message a ps".to_owned()), plan, workers, 0.0, peer)?
            .with_congestion(congestion))
    })
}

fn sharding(plan: &Plan) -> Result<Sharding, BenchError> {
    Sharding::modulo(tables(plan).rows, training::of(plan).size.ps).map_err(BenchError::sealane("shard tables"))
}

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--workers x --ps", training::of(plan).pairs(), 1)?;
    let sharding = sharding(plan)?;
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(spin);
        let mut ports = Vec::new();
        for ps in 0..training::of(plan).size.ps {
            let rows = || (0..sharding.rows_of(ps)).map(|local| sharding.row(ps, local));
            let ps = Ps(Arc::new((tables(plan), Memory::new(plan, rows))));
            let (listener, port) = trainers::listen(plan)?;
            ports.push(port);
            tokio::spawn(async move {
                if let Err(error) = service::serve_with(ps, trainers::connections(listener)).await {
                    eprintln!("a ps no longer serves: {error}");
                }
            });
        }
        announce(PeerReady { port: 0, ports })?;
        pending().await
    })
}

/// A ps and its part of all tables.
#[derive(Clone)]
struct Ps(Arc<(Tables, Memory)>);

impl Ps {
    /// The rows that a request names: for each table how many, and their numbers.
    fn pull(&self, request: &[u8]) -> Result<Bytes, Status> {
        let (tables, memory) = &*self.0;
        let number = |bytes: &[u8; ID_BYTES]| u32::from_le_bytes(*bytes);
        let named = request.as_chunks().0;
        let mut rows = BytesMut::zeroed(named.len().saturating_sub(tables.tables) * tables.row_bytes());
        let (mut rest, mut target) = (named, &mut rows[..]);
        for table in 0..tables.tables {
            let (count, tail) = rest.split_first().ok_or_else(|| Status::invalid_argument("too few tables"))?;
            let (ids, tail) = tail
                .split_at_checked(number(count) as usize)
                .ok_or_else(|| Status::invalid_argument("too few rows"))?;
            let (room, more) = target.split_at_mut(ids.len() * tables.row_bytes());
            memory.gather(table, ids.iter().map(|id| number(id).into()), room);
            (rest, target) = (tail, more);
        }
        Ok(rows.freeze())
    }
}

impl Service<http::Request<Body>> for Ps {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let ps = self.clone();
        Box::pin(async move {
            let codec = MessageCodec::<Bytes>::new(ps.0.0.step_bytes());
            let pull = |request: Request<Bytes>| ready(ps.pull(request.get_ref()).map(Response::new));
            Ok(Grpc::new(codec).max_decoding_message_size(usize::MAX).unary(service_fn(pull), request).await)
        })
    }
}

/// All workers.
struct Workers {
    /// Before the runtime, which runs their channels.
    workers: Vec<Worker>,
    runtime: Runtime,
    calls: u64,
    polling: bool,
}

impl Trainees for Workers {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let workers = std::mem::take(&mut self.workers);
        let trained = self.runtime.block_on(async {
            let _spinner = self.polling.then(spin);
            let tasks: Vec<_> = workers.into_iter().map(|worker| tokio::spawn(worker.train(steps))).collect();
            try_join_all(tasks).await.expect("no worker panics")
        });
        for (number, trained) in trained.into_iter().enumerate() {
            let (worker, times) = trained?;
            times.into_iter().for_each(|(began, ended)| log.completed(number, began, ended));
            self.calls += steps * worker.callers.len() as u64;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        Moved::over_loopback(2 * self.calls)
    }
}

/// One worker.
struct Worker {
    tables: Tables,
    wanted: Wanted,
    sharding: Arc<Sharding>,
    callers: Vec<Client<Channel>>,
    /// The rows of a step, of one table behind those of another.
    rows: Vec<u8>,
}

impl Worker {
    fn new(plan: &Plan, number: usize, channels: Vec<Channel>, sharding: Arc<Sharding>) -> Self {
        let (tables, wanted) = (tables(plan), Wanted::new(plan, number));
        let callers = channels.into_iter().map(|channel| Client::new(channel).max_decoding_message_size(usize::MAX));
        Self { tables, wanted, sharding, callers: callers.collect(), rows: vec![0; tables.step_bytes()] }
    }

    async fn train(mut self, steps: u64) -> Result<(Self, Vec<(Instant, Instant)>), BenchError> {
        let mut times = Vec::new();
        for _ in 0..steps {
            let began = Instant::now();
            self.make_step().await?;
            times.push((began, Instant::now()));
        }
        let table_bytes = self.rows.len() / self.tables.tables;
        for (table, rows) in self.rows.chunks_exact(table_bytes).enumerate() {
            self.wanted.check(NAME, table, rows)?;
        }
        Ok((self, times))
    }

    async fn make_step(&mut self) -> Result<(), BenchError> {
        let (row_bytes, ps) = (self.tables.row_bytes(), self.callers.len());
        let mut parts: Vec<Part> = (0..ps).map(|_| Part::with_room(&self.tables, ps)).collect();
        for (table, ids) in self.wanted.advance().iter().enumerate() {
            parts.iter_mut().for_each(Part::begin_table);
            for (place, &id) in ids.iter().enumerate() {
                let (owner, local) = self.sharding.place(id);
                parts[owner].add(local, table * self.tables.batch + place);
            }
            parts.iter_mut().for_each(Part::end_table);
        }
        let calls = self.callers.iter_mut().zip(parts).map(async |(caller, part)| {
            caller.ready().await.map_err(failed("call"))?;
            let request = Request::new(part.request.freeze());
            let codec = MessageCodec::<Bytes>::new(ps);
            let answer = caller.unary(request, PathAndQuery::from_static(PULL_ROWS), codec).await;
            Ok::<_, BenchError>((part.places, answer.map_err(failed("pull rows"))?.into_inner()))
        });
        for (places, answer) in try_join_all(calls).await? {
            if ps == 1 && answer.len() == self.rows.len() {
                // All in the order in which they were named.
                self.rows.copy_from_slice(&answer);
                continue;
            }
            for (place, row) in places.into_iter().zip(answer.chunks_exact(row_bytes)) {
                self.rows[place as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        Ok(())
    }
}

/// What one ps is asked for, and where its rows go.
struct Part {
    request: BytesMut,
    places: Vec<u32>,
    count_at: usize,
}

impl Part {
    fn with_room(tables: &Tables, ps: usize) -> Self {
        let rows = tables.rows_a_step() / ps * 5 / 4;
        Self {
            request: BytesMut::with_capacity((rows + tables.tables) * ID_BYTES),
            places: Vec::with_capacity(rows),
            count_at: 0,
        }
    }

    fn begin_table(&mut self) {
        self.count_at = self.request.len();
        self.request.put_u32_le(0);
    }

    fn add(&mut self, row: u64, place: usize) {
        self.request.put_u32_le(row as u32);
        self.places.push(place as u32);
    }

    fn end_table(&mut self) {
        let count = (self.request.len() - self.count_at) / ID_BYTES - 1;
        self.request[self.count_at..][..ID_BYTES].copy_from_slice(&(count as u32).to_le_bytes());
    }
}
