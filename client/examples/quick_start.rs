//! The parameter server of the guide's example: gives a worker its weights, receives a gradient.

use sealane::{Task, Tensor};

fn main() -> Result<(), sealane::Error> {
    let ps = Task::attach("ps0:2222")?;
    let weights = Tensor::from_elements(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
    ps.send("worker0:2222", 1, "dense/kernel", weights).wait()?; // returns when the worker has it
    let gradient = ps.recv("worker0:2222", 1, "dense/kernel:gradient").wait()?;
    println!("gradient {:?} = {:?}", gradient.shape(), gradient.elements::<f32>()?);
    Ok(())
}
