//! Tensors that cannot be mistaken for each other, and an executor for one future.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use sealane::{DType, Tensor, TensorMeta};

pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

pub fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, &[len as u64]).unwrap()
}

/// A tensor of `len` bytes that differs for each seed.
pub fn tensor(len: usize, seed: u64) -> Tensor {
    Tensor::new(meta(len), bytes(len, seed)).unwrap()
}

/// Polls a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
