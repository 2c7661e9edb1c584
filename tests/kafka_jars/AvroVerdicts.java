import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.SchemaCompatibility.SchemaCompatibilityType;

/** Reads lines of two schemas with a tab between them, and prints whether each reads the other, and how each is written. */
public class AvroVerdicts {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] texts = line.split("\t");
      Schema older = new Schema.Parser().parse(texts[0]);
      Schema newer = new Schema.Parser().parse(texts[1]);
      out.println(reads(newer, older) + "\t" + reads(older, newer) + "\t" + older + "\t" + newer);
    }
    out.flush();
  }

  private static String reads(Schema reader, Schema writer) {
    try {
      SchemaCompatibilityType type = SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getType();
      return type == SchemaCompatibilityType.COMPATIBLE ? "yes" : "no";
    } catch (RuntimeException error) {
      return "no";
    }
  }
}
