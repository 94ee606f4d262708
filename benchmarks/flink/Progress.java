import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;

/** When which checkpoint was complete, and how many rows it covers. All tasks are in this process, so they can say so here. */
final class Progress {
    private static long beganNanos;
    private static long[] ended; // rows of tasks that take part in no checkpoint any more
    private static final Map<Long, long[]> COVERED = new HashMap<>();
    private static final Map<Long, Double> COMPLETED = new HashMap<>();

    /** The job is submitted now. */
    static synchronized void begin(int tasks) {
        COVERED.clear();
        COMPLETED.clear();
        ended = new long[tasks];
        beganNanos = System.nanoTime();
    }

    static synchronized void covers(long checkpoint, int task, long rows) {
        COVERED.computeIfAbsent(checkpoint, id -> ended.clone())[task] = rows;
    }

    static synchronized void ends(int task, long rows) {
        ended[task] = rows;
    }

    static synchronized void completes(long checkpoint) {
        COMPLETED.putIfAbsent(checkpoint, seconds(System.nanoTime()));
    }

    static double seconds(long nanos) {
        return (nanos - beganNanos) / 1e9;
    }

    /** (seconds since submission, rows covered) of every complete checkpoint. */
    static synchronized List<double[]> commits() {
        List<double[]> found = new ArrayList<>();
        COMPLETED.forEach((id, at) -> found.add(new double[] {at, Arrays.stream(COVERED.getOrDefault(id, ended)).sum()}));
        found.sort((one, other) -> Double.compare(one[0], other[0]));
        return found;
    }

    /** The first function behind a source: counts the rows it is given. */
    abstract static class Counting<I, O> extends RichFlatMapFunction<I, O> implements CheckpointedFunction, CheckpointListener {
        protected transient long rows;
        private transient int task;

        @Override
        public void open(OpenContext context) throws Exception {
            task = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            covers(context.getCheckpointId(), task, rows);
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            completes(checkpoint);
        }

        @Override
        public void close() {
            ends(task, rows);
        }
    }

    private Progress() {}
}
