//! What a demo moved in the course of time. Memory does not grow with the steps: of many, some make a point.

use std::time::Duration;

use super::figures::Traffic;

/// Most points: as many as a wide plot can show.
const POINTS_MAX: u64 = 256;

/// Some steps, one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// When the last of them was done, since the first step that counts began.
    pub(super) ended: Duration,
    pub(super) steps: u64,
    pub(super) traffic: Traffic,
}

impl Point {
    fn add(&mut self, next: Point) {
        self.traffic.add(next.traffic);
        (self.ended, self.steps) = (next.ended, self.steps + next.steps);
    }
}

/// All steps so far, the same number in each point but the last.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    points: Vec<Point>,
    steps_a_point: u64,
}

impl Timeline {
    /// For so many steps.
    pub(super) fn new(steps: u64) -> Timeline {
        Timeline { points: Vec::new(), steps_a_point: steps.div_ceil(POINTS_MAX).max(1) }
    }

    /// One more step.
    pub(super) fn add(&mut self, ended: Duration, traffic: Traffic) {
        let step = Point { ended, steps: 1, traffic };
        match self.points.last_mut() {
            Some(last) if last.steps < self.steps_a_point => last.add(step),
            _ => self.points.push(step),
        }
    }

    /// The points, in order.
    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Steps of each point but the last.
    pub(super) fn steps_a_point(&self) -> u64 {
        self.steps_a_point
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Flow;
    use super::*;

    #[test]
    fn no_step_is_lost_and_the_points_stay_few() {
        let time = Duration::from_millis(1);
        let flow = Flow { tensors: 1, bytes: 1_000_000, time };
        let steps = 3 * POINTS_MAX + 1;
        let mut timeline = Timeline::new(steps);
        for step in 1..=steps {
            timeline.add(time * step as u32, Traffic { pull: flow, push: Flow::default() });
            assert_eq!(timeline.points().iter().map(|point| point.steps).sum::<u64>(), step);
        }
        assert!(timeline.points().len() as u64 <= POINTS_MAX);
        assert_eq!(timeline.steps_a_point(), 4);
        let (last, others) = timeline.points().split_last().unwrap();
        assert!(others.iter().all(|point| point.steps == 4 && point.traffic.pull.tensors == 4));
        assert!(others.windows(2).all(|pair| pair[1].ended - pair[0].ended == time * 4));
        assert_eq!((last.steps, last.ended), (1, time * steps as u32));
        assert_eq!(others[0].traffic.pull.gigabytes_per_s(), 1.0);
        assert_eq!(Timeline::new(POINTS_MAX).steps_a_point(), 1);
    }
}
