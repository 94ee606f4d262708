import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Arrays;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.reader.SimpleStreamFormat;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;

/** Lines as bytes, from memory or from files: no text is decoded before JSON is parsed. */
public final class Lines {
    /** Some bytes of an array, without the line break. */
    public static final class Line {
        public byte[] bytes;
        public int start;
        public int length;
    }

    /** The files of a folder in the order of their names. */
    static File[] files(String folder) {
        File[] found = new File(folder).listFiles((parent, name) -> name.endsWith(".json"));
        if (found == null || found.length == 0) {
            throw new IllegalArgumentException("there are no files *.json in " + folder);
        }
        Arrays.sort(found);
        return found;
    }

    /**
     * Lines from files mapped into memory: what a client of a broker hands over, without the network. Lane l of n has the files l,
     * l + n, ... The same Line for all of them: object reuse is on.
     */
    static final class Maker implements Numbered.Maker<Line> {
        private static final int BLOCK = 1 << 20;
        private final String folder;
        private final int lanes;
        private transient File[] files;
        private transient int file;
        private transient MappedByteBuffer mapped;
        private transient byte[] block;
        private transient int at;
        private transient int end;
        private transient Line line;

        Maker(String folder, int lanes) {
            this.folder = folder;
            this.lanes = lanes;
        }

        @Override
        public void open(int lane, long skip) throws IOException {
            files = files(folder);
            file = lane - lanes;
            mapped = null;
            block = new byte[BLOCK];
            at = end = 0;
            line = new Line();
            line.bytes = block;
            for (long skipped = 0; skipped < skip; skipped++) {
                make(0, 0);
            }
        }

        @Override
        public Line make(long number, long dueNanos) throws IOException {
            int stop = lineBreak(block, at, end);
            if (stop < 0) {
                fill();
                stop = lineBreak(block, at, end);
            }
            line.start = at;
            line.length = stop - at;
            at = stop + 1;
            return line;
        }

        /** Move half a line to the front and add what follows. */
        private void fill() throws IOException {
            System.arraycopy(block, at, block, 0, end - at);
            end -= at;
            at = 0;
            if (mapped == null || !mapped.hasRemaining()) {
                file += lanes;
                try (FileChannel channel = FileChannel.open(files[file].toPath())) {
                    mapped = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
                }
            }
            int more = Math.min(block.length - end, mapped.remaining());
            mapped.get(block, end, more);
            end += more;
        }
    }

    private static int lineBreak(byte[] bytes, int from, int end) {
        for (int position = from; position < end; position++) {
            if (bytes[position] == '\n') {
                return position;
            }
        }
        return -1;
    }

    /** For Flink's FileSource, which reads in a thread of its own: every line has its own bytes. */
    static final class Format extends SimpleStreamFormat<Line> {
        @Override
        public StreamFormat.Reader<Line> createReader(Configuration config, FSDataInputStream stream) {
            return new FileReader(stream);
        }

        @Override
        public TypeInformation<Line> getProducedType() {
            return TypeInformation.of(Line.class);
        }
    }

    private static final class FileReader implements StreamFormat.Reader<Line> {
        private final FSDataInputStream stream;
        private final byte[] block = new byte[1 << 20];
        private int at;
        private int end;

        FileReader(FSDataInputStream stream) {
            this.stream = stream;
        }

        @Override
        public Line read() throws IOException {
            int stop = lineBreak(block, at, end);
            while (stop < 0) {
                System.arraycopy(block, at, block, 0, end - at);
                end -= at;
                at = 0;
                int more = stream.read(block, end, block.length - end);
                if (more < 0) {
                    if (end > 0) {
                        throw new EOFException("the last line has no line break");
                    }
                    return null;
                }
                end += more;
                stop = lineBreak(block, at, end);
            }
            Line line = new Line();
            line.bytes = Arrays.copyOfRange(block, at, stop);
            line.length = stop - at;
            at = stop + 1;
            return line;
        }

        @Override
        public void close() throws IOException {
            stream.close();
        }
    }

    private Lines() {}
}
