//! What a demo moved in the course of time. Memory does not grow with the steps: when the points are full, two become one.

use std::time::Duration;

use super::figures::Traffic;

/// Most points: as many as a wide plot can show.
const POINTS_MAX: usize = 256;

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

impl Default for Timeline {
    fn default() -> Self {
        Timeline { points: Vec::with_capacity(POINTS_MAX), steps_a_point: 1 }
    }
}

impl Timeline {
    /// One more step.
    pub(super) fn add(&mut self, ended: Duration, traffic: Traffic) {
        let step = Point { ended, steps: 1, traffic };
        match self.points.last_mut() {
            Some(last) if last.steps < self.steps_a_point => last.add(step),
            _ => {
                if self.points.len() == POINTS_MAX {
                    self.halve();
                }
                self.points.push(step);
            }
        }
    }

    fn halve(&mut self) {
        for index in 0..POINTS_MAX / 2 {
            self.points[index] = self.points[2 * index];
            let second = self.points[2 * index + 1];
            self.points[index].add(second);
        }
        self.points.truncate(POINTS_MAX / 2);
        self.steps_a_point *= 2;
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
        let mut timeline = Timeline::default();
        let time = Duration::from_millis(1);
        let flow = Flow { tensors: 1, bytes: 1_000_000, time };
        for step in 1..=3 * POINTS_MAX as u64 + 1 {
            timeline.add(time * step as u32, Traffic { pull: flow, push: Flow::default() });
            assert!(timeline.points().len() <= POINTS_MAX);
            assert_eq!(timeline.points().iter().map(|point| point.steps).sum::<u64>(), step);
        }
        assert_eq!(timeline.steps_a_point(), 4);
        let (last, others) = timeline.points().split_last().unwrap();
        assert!(others.iter().all(|point| point.steps == 4 && point.traffic.pull.tensors == 4));
        assert!(others.windows(2).all(|pair| pair[1].ended - pair[0].ended == time * 4));
        assert_eq!((last.steps, last.ended), (1, time * (3 * POINTS_MAX as u32 + 1)));
        assert_eq!(others[0].traffic.pull.gigabytes_per_s(), 1.0);
    }
}
