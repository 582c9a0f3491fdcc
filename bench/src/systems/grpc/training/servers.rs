//! The parameter servers: a service each, in one runtime.

use std::future::pending;
use std::sync::Arc;

use futures_util::stream;
use tokio::net::TcpListener;

use super::super::connection;
use super::super::runtime::runtime;
use super::super::service::{self, Ps};
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{PeerJob, PeerReady, announce};
use crate::plan::spread;
use crate::systems::{sockets, training};

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    open_files::allow_for("--workers x --ps", training.pairs(), 1)?;
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(connection::spin);
        let mut ports = Vec::new();
        let shares = spread(&plan.step, training.size.ps).into_iter().zip(spread(&training.push, training.size.ps));
        for (pulled, pushed) in shares {
            let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
            ports.push(sockets::port(&listener)?);
            listener.set_nonblocking(true).map_err(BenchError::io("hand a listener to gRPC"))?;
            let listener = TcpListener::from_std(listener).map_err(BenchError::io("hand a listener to gRPC"))?;
            let gradients: Vec<usize> = pushed.iter().map(|&number| training.push[number]).collect();
            let sizes = pulled.iter().map(|&number| plan.step[number]);
            tokio::spawn(serve_one(Ps::new(sizes, &gradients, training.size.workers), listener));
        }
        announce(PeerReady { port: 0, ports })?;
        pending().await
    })
}

async fn serve_one(ps: Arc<Ps>, listener: TcpListener) {
    let connections = stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Some((accepted, listener))
    });
    if let Err(error) = service::serve(ps, Box::pin(connections)).await {
        eprintln!("a ps no longer serves: {error}");
    }
}
