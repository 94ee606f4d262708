import java.io.File;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.assigners.SimpleSplitAssigner;
import org.apache.flink.core.fs.Path;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** Views per campaign in windows of ten seconds: the work of workload.py as one writes it for Flink's DataStream API. */
final class AdCounts {
    static final long WINDOW_MS = 10_000;
    static final Map<String, Long> RESULTS = new ConcurrentHashMap<>();
    static volatile long lastResultNanos;

    private static final TypeInformation<Tuple2<String, Long>> VIEW = Types.TUPLE(Types.STRING, Types.LONG);
    private static final TypeInformation<Tuple3<String, Long, Long>> COUNT = Types.TUPLE(Types.STRING, Types.LONG, Types.LONG);

    /** The job of a case. With phases=two it counts in front of the exchange too. */
    static void build(StreamExecutionEnvironment env, Map<String, String> args, long rows, int lanes) throws Exception {
        Map<String, String> campaigns = Events.campaigns(args.get("ads"));
        DataStream<Tuple2<String, Long>> views;
        if (args.get("case").equals("generated")) {
            Source<Events.Event, ?, ?> source = new Numbered<>(rows, lanes, 0, new Events.Maker(new ArrayList<>(campaigns.keySet())));
            views = read(env, source, Events.Event.class).flatMap(new OfEvents(campaigns)).returns(VIEW);
        } else {
            Source<Lines.Line, ?, ?> source =
                    args.get("case").equals("memory")
                            ? new Numbered<>(rows, lanes, 0, new Lines.Maker(args.get("folder"), lanes))
                            : files(args.get("folder"));
            views = read(env, source, Lines.Line.class).flatMap(new OfLines(campaigns)).returns(VIEW);
        }
        WatermarkStrategy<Tuple2<String, Long>> times =
                WatermarkStrategy.<Tuple2<String, Long>>forMonotonousTimestamps().withTimestampAssigner((view, before) -> view.f1);
        views = views.assignTimestampsAndWatermarks(times);
        boolean twoPhase = args.get("phases").equals("two");
        if (twoPhase) {
            views = views.transform("local counts", VIEW, new LocalCounts(WINDOW_MS));
        }
        views.keyBy(view -> view.f0, Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(WINDOW_MS)))
                .aggregate(twoPhase ? new Sum() : new Count(), new Result(), Types.LONG, Types.LONG, COUNT)
                .map(new Keep())
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
    }

    private static <T> DataStream<T> read(StreamExecutionEnvironment env, Source<T, ?, ?> source, Class<T> type) {
        return env.fromSource(source, WatermarkStrategy.noWatermarks(), "events", TypeInformation.of(type));
    }

    /** Readers take the next file in the order of their names: the assigner hands out the last of its list first. */
    private static Source<Lines.Line, ?, ?> files(String folder) {
        File[] files = Lines.files(folder);
        Path[] paths = new Path[files.length];
        for (int number = 0; number < files.length; number++) {
            paths[files.length - 1 - number] = Path.fromLocalFile(files[number]);
        }
        return FileSource.forRecordStreamFormat(new Lines.Format(), paths).setSplitAssigner(SimpleSplitAssigner::new).build();
    }

    /** Keeps views: (campaign, time in milliseconds). */
    private static final class OfEvents extends Progress.Counting<Events.Event, Tuple2<String, Long>> {
        private final Map<String, String> campaigns;
        private transient Tuple2<String, Long> view;

        OfEvents(Map<String, String> campaigns) {
            this.campaigns = new HashMap<>(campaigns);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            super.open(context);
            view = new Tuple2<>();
        }

        @Override
        public void flatMap(Events.Event event, Collector<Tuple2<String, Long>> out) {
            rows++;
            if (event.kind.equals("view")) {
                view.f0 = campaigns.get(event.ad);
                view.f1 = event.at / 1000;
                out.collect(view);
            }
        }
    }

    /** The same of lines. The whole line is tokenised, so that one that is no JSON fails; three fields are looked at. */
    private static final class OfLines extends Progress.Counting<Lines.Line, Tuple2<String, Long>> {
        private final Map<String, String> campaigns;
        private transient JsonFactory json;
        private transient Tuple2<String, Long> view;

        OfLines(Map<String, String> campaigns) {
            this.campaigns = new HashMap<>(campaigns);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            super.open(context);
            json = new JsonFactory();
            view = new Tuple2<>();
        }

        @Override
        public void flatMap(Lines.Line line, Collector<Tuple2<String, Long>> out) throws Exception {
            rows++;
            String ad = null;
            boolean isView = false;
            long at = 0;
            try (JsonParser parser = json.createParser(line.bytes, line.start, line.length)) {
                parser.nextToken();
                String name;
                while ((name = parser.nextFieldName()) != null) {
                    parser.nextToken();
                    switch (name) {
                        case "ad_id":
                            ad = parser.getText();
                            break;
                        case "event_type":
                            isView = parser.getText().equals("view");
                            break;
                        case "at":
                            at = parser.getLongValue();
                            break;
                        default:
                    }
                }
            }
            if (isView) {
                view.f0 = campaigns.get(ad);
                view.f1 = at / 1000;
                out.collect(view);
            }
        }
    }

    private static class Count implements AggregateFunction<Tuple2<String, Long>, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Tuple2<String, Long> view, Long count) {
            return count + 1;
        }

        @Override
        public Long getResult(Long count) {
            return count;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    /** Of what LocalCounts counted. */
    private static final class Sum extends Count {
        @Override
        public Long add(Tuple2<String, Long> counted, Long count) {
            return count + counted.f1;
        }
    }

    private static final class Result extends ProcessWindowFunction<Long, Tuple3<String, Long, Long>, String, TimeWindow> {
        @Override
        public void process(String campaign, Context context, Iterable<Long> count, Collector<Tuple3<String, Long, Long>> out) {
            out.collect(Tuple3.of(campaign, context.window().getStart(), count.iterator().next()));
        }
    }

    /** Where results arrive. Kept at once, without waiting for a checkpoint: that is in Flink's favour. */
    private static final class Keep implements MapFunction<Tuple3<String, Long, Long>, Long> {
        @Override
        public Long map(Tuple3<String, Long, Long> result) {
            RESULTS.merge(result.f0 + "," + result.f1, result.f2, Long::sum);
            lastResultNanos = System.nanoTime();
            return result.f2;
        }
    }

    /** [campaign, start of the window in microseconds, views] of each result. */
    static List<Object[]> results() {
        List<Object[]> found = new ArrayList<>();
        RESULTS.forEach(
                (key, views) -> {
                    String[] parts = key.split(",");
                    found.add(new Object[] {parts[0], Long.parseLong(parts[1]) * 1000, views});
                });
        return found;
    }

    private AdCounts() {}
}
